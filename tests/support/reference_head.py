"""EAGLE-3 head forward in torch, written from docs/head_formats.md alone: the oracle for the drafter Cell.

Nothing of the package computes here except the dataclass that describes the head. Float64, one sequence, no
batch, plain formulas.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ms_eagle.drafters.eagle3.config import HeadConfig


class Result(NamedTuple):
    logits: torch.Tensor  # [T, Vd]
    next_feature: torch.Tensor  # [T, E]
    past: list[tuple[torch.Tensor, torch.Tensor]]  # per layer: keys and values [H_kv, P + T, d]


def forward(
    config: HeadConfig,
    tensors: Mapping[str, np.ndarray],
    token_ids: Sequence[int],  # [T]
    positions: Sequence[int],  # [T]
    mask: np.ndarray,  # [T, P + T] bool, True = discard
    *,
    taps: np.ndarray | None = None,  # [T, num_taps * target_hidden_size]: the first pass
    feature: np.ndarray | None = None,  # [T, E]: a later pass, `next_feature` of the parents
    past: list[tuple[torch.Tensor, torch.Tensor]] | None = None,  # [H_kv, P, d]
    teacher_embedding: np.ndarray | None = None,  # where the head has none
    teacher_lm_head: np.ndarray | None = None,  # likewise
) -> Result:
    """One pass over T rows that see P earlier rows; exactly one of taps and feature is given."""
    if (taps is None) == (feature is None):
        raise ValueError("give either taps or feature")
    w = {name: _wide(value) for name, value in tensors.items()}
    f = fuse(config, tensors, taps) if feature is None else _wide(feature)
    table = w["embed.weight"] if config.own_embedding else _wide(teacher_embedding)
    e = _norm(table[torch.as_tensor(token_ids)], w["layers.0.input_norm.weight"], config)
    once = _norm(f, w["layers.0.input_norm.weight"], config) if config.double_norm else f
    n = _norm(once, w["layers.0.hidden_norm.weight"], config)
    h = n if config.norm_before_residual else f
    grown = []
    for layer in range(config.num_layers):
        own = {name.removeprefix(f"layers.{layer}."): value for name, value in w.items()}
        x = torch.cat([e, n], 1) if layer == 0 else _norm(h, own["input_norm.weight"], config)
        y, keys, values = _attention(config, own, x, positions, mask, past[layer] if past else None)
        h = h + y
        x = _norm(h, own["post_attention_norm.weight"], config)
        gate, up = _linear(x, own, "mlp.gate_proj"), _linear(x, own, "mlp.up_proj")
        h = h + _linear(gate * torch.sigmoid(gate) * up, own, "mlp.down_proj")
        grown.append((keys, values))
    normed = _norm(h, w["norm.weight"], config)
    head = _wide(teacher_lm_head) if config.shares_lm_head else w["lm_head.weight"]
    return Result((h if config.raw_logits else normed) @ head.T, normed if config.norm_output else h, grown)


def fuse(config: HeadConfig, tensors: Mapping[str, np.ndarray], taps: np.ndarray) -> torch.Tensor:
    """``[T, num_taps * target_hidden_size] -> [T, E]``: the feature of the taps."""
    w = {name: _wide(value) for name, value in tensors.items()}
    x = _wide(taps)
    if config.norm_before_fc:
        x = _norm(x, w["input_norm.weight"], config)
    if config.fc_norm:
        parts = x.split(config.target_hidden_size, 1)
        x = torch.cat([_norm(part, w[f"fc_norm.{i}.weight"], config) for i, part in enumerate(parts)], 1)
    return _linear(x, w, "fc")


def _attention(config, w, x, positions, mask, past):
    """Grouped-query attention with rotary positions over ``[past; x]``."""
    rows, d = x.shape[0], config.head_dim
    q = _linear(x, w, "attention.q_proj").reshape(rows, config.num_heads, d)
    k = _linear(x, w, "attention.k_proj").reshape(rows, config.num_kv_heads, d)
    v = _linear(x, w, "attention.v_proj").reshape(rows, config.num_kv_heads, d)
    if config.qk_norm:
        q, k = _norm(q, w["attention.q_norm.weight"], config), _norm(k, w["attention.k_norm.weight"], config)
    inverse, factor = config.rope.frequencies()
    angle = torch.as_tensor(positions, dtype=torch.float64)[:, None] * _wide(inverse)[None, :]
    q, k = _rotate(q, angle, factor), _rotate(k, angle, factor)
    k, v = k.transpose(0, 1), v.transpose(0, 1)  # [H_kv, T, d]
    if past is not None:
        k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    outputs = []
    for head in range(config.num_heads):
        group = head // (config.num_heads // config.num_kv_heads)
        scores = q[:, head] @ k[group].T / math.sqrt(d)
        weights = scores.masked_fill(torch.as_tensor(mask), -math.inf).softmax(1)
        outputs.append(weights @ v[group])
    return _linear(torch.cat(outputs, 1), w, "attention.o_proj"), k, v


def _rotate(x, angle, factor):
    """Rotate the pairs ``(x[i], x[i + d/2])`` of ``[T, H, d]`` by the angles ``[T, d/2]``."""
    low, high = x.chunk(2, 2)
    cos, sin = (angle.cos() * factor)[:, None], (angle.sin() * factor)[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], 2)


def _norm(x, weight, config):
    return x * (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weight


def _linear(x, w, name):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _wide(array):
    return torch.as_tensor(np.asarray(array), dtype=torch.float64)
