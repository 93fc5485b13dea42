"""What other code does with a head's files, as torch modules written from its formulas: the config's keys
with that code's defaults, tensors loaded without complaint as it loads them. Float64, one causal sequence.

Nothing of the package computes here. The formulas are those of the code at the dates in docs/head_formats.md.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional


class _Reader:
    """What they have in common: EAGLE-3's first layer and the names of its parts."""

    first = "midlayer."

    def __init__(self, directory: Path) -> None:
        self.top = json.loads((directory / "config.json").read_text())
        self.layer = self.top
        self.weights = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(directory / "model.safetensors").items()
        }

    @property
    def heads(self) -> tuple[int, int, int]:
        heads = self.layer["num_attention_heads"]
        dim = self.layer.get("head_dim") or self.layer["hidden_size"] // heads
        return heads, self.layer.get("num_key_value_heads", heads), dim

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.layer["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[name]

    def attention(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        (heads, kv, dim), rows = self.heads, x.shape[0]
        q, k, v = (self.project(f"{prefix}self_attn.{p}_proj", x).reshape(rows, -1, dim) for p in "qkv")
        half = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        angle = torch.arange(rows, dtype=torch.float64)[:, None] / self.layer.get("rope_theta", 1e4) ** half
        cos, sin = (torch.cat([f(angle)] * 2, 1)[:, None] for f in (torch.cos, torch.sin))
        q, k = (self.head_norms(prefix, n, t) for n, t in (("q", q), ("k", k)))
        q, k = (t * cos + torch.cat([-t[..., dim // 2 :], t[..., : dim // 2]], 2) * sin for t in (q, k))
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(2), v).reshape(rows, heads * dim)
        return self.project(f"{prefix}self_attn.o_proj", mixed)

    def head_norms(self, prefix: str, name: str, x: torch.Tensor) -> torch.Tensor:
        return x

    def project(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def mlp(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x, f"{prefix}post_attention_layernorm.weight")
        gate = functional.silu(self.project(f"{prefix}mlp.gate_proj", x))
        return self.project(f"{prefix}mlp.down_proj", gate * self.project(f"{prefix}mlp.up_proj", x))

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        return taps @ self.weights["fc.weight"].T

    def embedding(self, teacher: torch.Tensor) -> torch.Tensor:
        return self.weights.get("embed_tokens.weight", teacher)

    def first_layer(self, embedded: torch.Tensor, feature: torch.Tensor, residual_is_normed: bool = False):
        normed = self.norm(feature, f"{self.first}hidden_norm.weight")
        x = torch.cat([self.norm(embedded, f"{self.first}input_layernorm.weight"), normed], 1)
        h = (normed if residual_is_normed else feature) + self.attention(self.first, x)
        return h + self.mlp(self.first, h)

    def target_ids(self) -> torch.Tensor:
        d2t = self.weights.get("d2t", torch.zeros(self.weights["lm_head.weight"].shape[0], dtype=torch.long))
        return d2t + torch.arange(len(d2t))


class SafeAILab(_Reader):
    """``eagle/model/cnets.py``: three taps, one layer, no options; head_dim is E / heads.

    It loads the teacher's embedding unless ``target_hidden_size`` is there, whatever its value; then it keeps
    what it began with, which is random, unless the head brings one.
    """

    @property
    def heads(self) -> tuple[int, int, int]:
        heads = self.layer["num_attention_heads"]
        return heads, self.layer["num_key_value_heads"], self.layer["hidden_size"] // heads

    def embedding(self, teacher: torch.Tensor) -> torch.Tensor:
        random = torch.randn(teacher.shape, dtype=torch.float64)
        return super().embedding(random if "target_hidden_size" in self.top else teacher)

    def draft(self, taps, tokens, teacher_embedding):
        """Logits ``[T, V_d]`` and the next step's features ``[T, E]``."""
        h = self.first_layer(self.embedding(teacher_embedding)[tokens], self.fuse(taps))
        return self.norm(h, "norm.weight") @ self.weights["lm_head.weight"].T, h


class SpecForge(_Reader):
    """``LlamaForCausalLMEagle3`` of SpecForge: ``norm_output`` is true where absent and asks for the norm
    before the LM head; the next step starts from the state before it."""

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        if self.top.get("fc_norm", False):
            parts = taps.chunk(3, 1)
            taps = torch.cat([self.norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)], 1)
        return super().fuse(taps)

    def draft(self, taps, tokens, teacher_embedding):
        h = self.first_layer(teacher_embedding[tokens], self.fuse(taps))
        normed = self.norm(h, "norm.weight") if self.top.get("norm_output", True) else h
        return normed @ self.weights["lm_head.weight"].T, h


class SGLang(SpecForge):
    """``llama_eagle3.py`` of SGLang since EAGLE-3.1: later layers norm with ``hidden_norm``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if self.top["architectures"] != ["LlamaForCausalLMEagle3"]:
            raise ValueError(f"no model class for {self.top['architectures']}")
        ids = (self.top.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        self.taps = None if ids is None else [i + 1 for i in ids]

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        if self.top.get("fc_norm", False):
            parts = taps.chunk(3 if self.taps is None else len(self.taps), 1)
            taps = torch.cat([self.norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)], 1)
        return _Reader.fuse(self, taps)

    def draft(self, taps, tokens, teacher_embedding):
        h = self.first_layer(teacher_embedding[tokens], self.fuse(taps))
        for layer in range(1, self.top["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            h = h + self.attention(prefix, self.norm(h, f"{prefix}hidden_norm.weight"))
            h = h + self.mlp(prefix, h)
        normed = self.norm(h, "norm.weight")
        logits = normed @ self.weights["lm_head.weight"].T
        return logits, normed if self.top.get("norm_output", False) else h


class Speculators(_Reader):
    """``Eagle3DraftModel`` of speculators: biases and head norms where the layer's config asks for them."""

    first = "layers.0."

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.layer = self.top["transformer_layer_config"]
        self.taps = self.top.get("eagle_aux_hidden_state_layer_ids")

    def project(self, name: str, x: torch.Tensor) -> torch.Tensor:
        key = "attention_bias" if "self_attn" in name else "mlp_bias"
        bias = self.weights[f"{name}.bias"] if self.layer.get(key, False) else 0.0
        return super().project(name, x) + bias

    def head_norms(self, prefix: str, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            self.norm(x, f"{prefix}self_attn.{name}_norm.weight")
            if self.layer["model_type"] == "qwen3"
            else x
        )

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        if self.top.get("norm_before_fc", False):
            taps = self.norm(taps, "input_norm.weight")
        if self.top.get("fc_norm", False):
            parts = taps.chunk(len(self.taps), 1)
            taps = torch.cat([self.norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)], 1)
        return super().fuse(taps)

    def draft(self, taps, tokens, teacher_embedding):
        embedded = self.embedding(teacher_embedding)[tokens]
        h = self.first_layer(embedded, self.fuse(taps), self.top.get("norm_before_residual", False))
        for layer in range(1, self.layer["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            h = h + self.attention(prefix, self.norm(h, f"{prefix}input_layernorm.weight"))
            h = h + self.mlp(prefix, h)
        normed = self.norm(h, "norm.weight")
        return normed @ self.weights["lm_head.weight"].T, normed if self.top.get("norm_output", False) else h
