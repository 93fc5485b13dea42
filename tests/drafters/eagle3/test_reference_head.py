"""The oracle itself, against the decoder layers of transformers put together another way."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import reference_head
from support.head_configs import PLAIN
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from ms_eagle.models.rope import RopeConfig

CONFIG = replace(PLAIN, head_dim=4, rope=RopeConfig(4, 500.0, "default", {}, 64), own_embedding=True)
VARIANTS = {
    "plain": {},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "biases": {"fc_bias": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "qk_norm": {"qk_norm": True},
    "three layers": {"num_layers": 3, "norm_before_residual": True},
    "teacher's ends": {"own_embedding": False, "shares_lm_head": True, "draft_vocab_size": 30},
}


def _weights(config, seed=0):
    random = np.random.default_rng(seed)
    return {n: random.standard_normal(s) * 0.5 + ("norm" in n) for n, s in config.tensor_shapes().items()}


def _module(config, weights, layer):
    """A decoder layer of transformers in float64, its first projections widened by hand."""
    family, kind = (qwen3, Qwen3Config) if config.qk_norm else (llama, LlamaConfig)
    hf = kind(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope.theta,
        attention_bias=config.qkv_bias,
        mlp_bias=config.mlp_bias,
        attn_implementation="eager",
        num_hidden_layers=1,
    )
    block = (family.Qwen3DecoderLayer if config.qk_norm else family.LlamaDecoderLayer)(hf, 0)
    rotary = (family.Qwen3RotaryEmbedding if config.qk_norm else family.LlamaRotaryEmbedding)(hf)
    own = {
        n.removeprefix(f"layers.{layer}."): torch.tensor(w)
        for n, w in weights.items()
        if n.startswith(f"layers.{layer}.")
    }
    own["hidden_norm.weight"] = own.get("hidden_norm.weight", torch.ones(config.hidden_size))
    names = {"input_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
    for name, value in own.items():
        first, _, rest = name.partition(".")
        path = (
            name.replace("attention.", "self_attn.")
            if first == "attention"
            else f"{names.get(first, first)}.{rest}"
        )
        if path.startswith("hidden_norm"):
            continue
        target, leaf = path.rsplit(".", 1)
        setattr(block.get_submodule(target), leaf, torch.nn.Parameter(value))
    return block.double(), rotary.double(), own["hidden_norm.weight"]


def _expected(config, weights, tokens, positions, discard, features, embedding, lm_head):
    eps = config.rms_norm_eps

    def norm(x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], torch.as_tensor(weight), eps)

    f = torch.as_tensor(features)
    if config.norm_before_fc:
        f = norm(f, weights["input_norm.weight"])
    if config.fc_norm:
        f = torch.cat([norm(c, weights[f"fc_norm.{i}.weight"]) for i, c in enumerate(f.chunk(3, -1))], -1)
    bias = torch.as_tensor(weights["fc.bias"]) if config.fc_bias else None
    h = torch.nn.functional.linear(f, torch.as_tensor(weights["fc.weight"]), bias)[None]
    additive = torch.zeros(discard.shape, dtype=torch.float64).masked_fill(torch.as_tensor(discard), -1e30)
    for layer in range(config.num_layers):
        block, rotary, hidden_norm = _module(config, weights, layer)
        angles = rotary(h, torch.as_tensor([positions]))
        if layer == 0:
            normed = norm(h, hidden_norm)
            x = torch.cat([block.input_layernorm(torch.as_tensor(embedding)[list(tokens)][None]), normed], -1)
            h = normed if config.norm_before_residual else h
        else:
            x = block.input_layernorm(h)
        y, _ = block.self_attn(
            hidden_states=x, position_embeddings=angles, attention_mask=additive[None, None]
        )
        h = h + y
        h = h + block.mlp(block.post_attention_layernorm(h))
    normed = norm(h, weights["norm.weight"])
    return (normed @ torch.as_tensor(lm_head).T)[0], (normed if config.norm_output else h)[0]


def _inputs(config, rows=5):
    random = np.random.default_rng(1)
    tokens = random.integers(0, config.vocab_size, rows).tolist()
    discard = np.triu(np.ones((rows, rows), bool), 1)
    discard[4, 3] = True  # a tree: rows 3 and 4 are siblings
    positions = [3, 4, 5, 6, 6]
    return tokens, positions, discard, random.standard_normal((rows, 3 * config.target_hidden_size))


@pytest.mark.parametrize("name", VARIANTS)
def test_matches_transformers(name):
    config = replace(CONFIG, **VARIANTS[name])
    weights = _weights(config)
    random = np.random.default_rng(2)
    embedding = weights.get("embed.weight", random.standard_normal((config.vocab_size, config.hidden_size)))
    lm_head = weights.get("lm_head.weight", random.standard_normal((config.vocab_size, config.hidden_size)))
    tokens, positions, discard, taps = _inputs(config)
    found = reference_head.forward(
        config,
        weights,
        tokens,
        positions,
        discard,
        taps=taps,
        teacher_embedding=embedding,
        teacher_lm_head=lm_head,
    )
    logits, feature = _expected(config, weights, tokens, positions, discard, taps, embedding, lm_head)
    assert found.logits.shape == (5, config.draft_vocab_size)
    # transformers forms its angles in float32
    torch.testing.assert_close(found.logits, logits.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.next_feature, feature.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_pass_in_two_parts_equals_one(name):
    config = replace(CONFIG, **VARIANTS[name])
    weights = _weights(config)
    ends = {
        "teacher_embedding": np.ones((config.vocab_size, config.hidden_size)),
        "teacher_lm_head": np.ones((config.vocab_size, config.hidden_size)),
    }
    tokens, positions, discard, taps = _inputs(config)
    whole = reference_head.forward(config, weights, tokens, positions, discard, taps=taps, **ends)
    first = reference_head.forward(
        config, weights, tokens[:2], positions[:2], discard[:2, :2], taps=taps[:2], **ends
    )
    second = reference_head.forward(
        config, weights, tokens[2:], positions[2:], discard[2:], taps=taps[2:], past=first.past, **ends
    )
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), whole.logits)
    torch.testing.assert_close(second.past[0][0], whole.past[0][0])


def test_a_feature_skips_the_fusion():
    weights = _weights(CONFIG)
    tokens, positions, discard, taps = _inputs(CONFIG)
    feature = reference_head.fuse(CONFIG, weights, taps)
    given = reference_head.forward(CONFIG, weights, tokens, positions, discard, feature=feature)
    fused = reference_head.forward(CONFIG, weights, tokens, positions, discard, taps=taps)
    torch.testing.assert_close(given.logits, fused.logits)
    assert not torch.allclose(
        reference_head.forward(CONFIG, weights, tokens, positions, discard, feature=2 * feature).logits,
        given.logits,
    )
