"""What a teacher looks like: one description that covers every supported decoder family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ms_eagle.errors import UserError
from ms_eagle.models import config_values
from ms_eagle.models.rope import RopeConfig


@dataclass(frozen=True)
class _Family:
    """What a family does by default; config.json may override what has a key."""

    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    bias_key: str | None = None  # config.json key that switches the q, k, v and o biases together
    default_theta: float | None = 10000.0


FAMILIES = {
    "LlamaForCausalLM": _Family(bias_key="attention_bias"),
    "PanguEmbeddedForCausalLM": _Family(bias_key="bias", default_theta=None),
    "Qwen2ForCausalLM": _Family(qkv_bias=True),
    "Qwen3ForCausalLM": _Family(qk_norm=True, bias_key="attention_bias"),
}


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes and variants of a decoder layer, a teacher's or a drafter's.

    Attributes:
        qkv_bias, o_bias, mlp_bias: which projections carry a bias.
        qk_norm: RMSNorm over each head of q and k before the rotation (Qwen3).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LayerConfig):
    """A pre-norm decoder with rotary positions, grouped KV heads and a SwiGLU MLP.

    Attributes:
        architecture: name as in config.json, a key of ``FAMILIES``.
        tied: the LM head is the embedding.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    rope: RopeConfig
    tied: bool

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "DecoderConfig":
        """Read a Hugging Face config.json.

        Raises:
            UserError: an architecture or an option that is not implemented, a missing or impossible size.
        """
        names = config.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        if name not in FAMILIES:
            raise UserError(
                f"config.json: architecture {name!r} is not implemented; "
                f"known are {', '.join(sorted(FAMILIES))}."
            )
        family = FAMILIES[name]
        config_values.check(config_values.DecoderValues, config, "config.json: ")
        _refuse_unimplemented(config)
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", heads)
        head_dim = _size(config, "head_dim", None if hidden % heads else hidden // heads)
        if heads % kv_heads:
            raise UserError(
                f"config.json: {heads} attention heads do not divide into groups over {kv_heads} KV heads."
            )
        bias = bool(config.get(family.bias_key, False)) if family.bias_key else False
        return cls(
            architecture=name,
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=RopeConfig.from_hf(config, head_dim, family.default_theta),
            qkv_bias=family.qkv_bias or bias,
            o_bias=family.o_bias or bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint, in Hugging Face's names."""
        hidden, inner, d = self.hidden_size, self.intermediate_size, self.head_dim
        q, kv = self.num_heads * d, self.num_kv_heads * d
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            for part, rows, columns, bias in (
                ("self_attn.q_proj", q, hidden, self.qkv_bias),
                ("self_attn.k_proj", kv, hidden, self.qkv_bias),
                ("self_attn.v_proj", kv, hidden, self.qkv_bias),
                ("self_attn.o_proj", hidden, q, self.o_bias),
                ("mlp.gate_proj", inner, hidden, self.mlp_bias),
                ("mlp.up_proj", inner, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, inner, self.mlp_bias),
            ):
                shapes[f"{prefix}{part}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{prefix}{part}.bias"] = (rows,)
            if self.qk_norm:
                shapes[f"{prefix}self_attn.q_norm.weight"] = (d,)
                shapes[f"{prefix}self_attn.k_norm.weight"] = (d,)
            shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
            shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def ignorable_tensors(self) -> tuple[str, ...]:
        """Patterns of tensors that some exporters add and that hold nothing of their own."""
        return ("*.rotary_emb.inv_freq", *(("lm_head.weight",) if self.tied else ()))


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int):  # neither there nor to be had from elsewhere
        raise UserError(f"config.json: {key} is {value!r}; expected a whole number of at least 1.")
    return value


def _refuse_unimplemented(config: Mapping[str, Any]) -> None:
    """Options that would change the result and that no Cell here carries out."""
    act = config.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise UserError(f"config.json: hidden_act {act!r} is not implemented; known is silu.")
    if config.get("use_sliding_window"):
        raise UserError(
            "config.json: use_sliding_window is set; sliding-window attention is not implemented."
        )
    if config.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise UserError("config.json: partial_rotary_factor other than 1 is not implemented.")
    if config.get("quantization_config"):
        raise UserError(
            "config.json: quantization_config is set; quantised checkpoints are not implemented: "
            "use one in fp32, fp16 or bf16."
        )
