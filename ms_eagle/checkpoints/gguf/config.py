"""A Hugging Face ``config.json`` from the metadata of a GGUF file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig

# GGUF architecture -> (Hugging Face class, whether q/k rows are stored interleaved).
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", True),
    "qwen2": ("Qwen2ForCausalLM", False),
    "qwen3": ("Qwen3ForCausalLM", False),
}
# Keys under "<architecture>." that are read below, or that say nothing about the computation.
_KNOWN_KEYS = frozenset(
    (
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon",
        "rope.freq_base", "rope.dimension_count", "rope.scale_linear",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
        "tensor_data_layout", "attention.layer_norm_epsilon",
    )
)  # fmt: skip
# Keys that name a computation the decoders lack, each with the values that switch it off.
_NEUTRAL_KEYS: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class GgufConfig:
    """What a GGUF file's metadata says, in Hugging Face terms.

    Attributes:
        model: the content of config.json.
        generation: the content of generation_config.json.
        interleaved: whether the rows of q and k are stored in the interleaved rotary order.
    """

    model: dict[str, object]
    generation: dict[str, object]
    interleaved: bool


def clean_decimal(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 9.999999747378752e-06 becomes 1e-05."""
    return float(str(np.float32(value)))


def from_metadata(
    metadata: Mapping[str, object],
    *,
    vocab_size: int,
    tied: bool,
    attention_bias: bool,
    mlp_bias: bool = False,
    rope_factors: np.ndarray | None = None,
) -> GgufConfig:
    """Translate GGUF metadata to Hugging Face configuration.

    Args:
        metadata: GGUF keys to plain values.
        vocab_size: rows of the embedding.
        tied: whether the file lacks an output matrix of its own.
        attention_bias: whether the q, k and v projections have biases.
        mlp_bias: whether the three projections of the MLP have biases.
        rope_factors: the tensor ``rope_freqs.weight``, ``[head_dim / 2]`` float32, divisors of the inverse
            frequencies, by which GGUF carries llama3 scaling.

    Raises:
        UserError: an architecture, a key or a value that the decoders do not implement, or a missing key.
    """
    reader = _Keys(metadata)
    name = reader.architecture
    architecture, interleaved = ARCHITECTURES[name]
    heads = reader.integer("attention.head_count")
    hidden = reader.integer("embedding_length")
    head_dim = reader.integer("attention.key_length", reader.integer("rope.dimension_count", hidden // heads))
    context = reader.integer("context_length")
    reader.require("vocab_size", vocab_size, "an embedding of another size")
    reader.require("attention.value_length", head_dim, "values and keys of different sizes")
    reader.require("rope.dimension_count", head_dim, "rotation of a part of each head")
    theta = clean_decimal(reader.number("rope.freq_base", 10000.0))
    scaling = _rope_scaling(reader, context)
    if rope_factors is not None:
        scaling = _llama3_scaling(rope_factors, theta, head_dim, scaling)
    tokens = {f"{kind}_token_id": reader.token(f"{kind}_token_id", vocab_size) for kind in ("bos", "eos")}
    pad = metadata.get("tokenizer.ggml.padding_token_id")  # nothing needs it: one out of range is none
    tokens["pad_token_id"] = pad if type(pad) is int and 0 <= pad < vocab_size else None
    model: dict[str, object] = {
        "architectures": [architecture],
        "model_type": name,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": clean_decimal(reader.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "max_position_embeddings": context,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "attention_bias": attention_bias,
        "torch_dtype": "float32",
        **tokens,
    }
    if name == "llama":
        model["mlp_bias"] = mlp_bias
    ends = [reader.token(key, vocab_size) for key in _END_KEYS]
    distinct = list(dict.fromkeys(end for end in ends if end is not None))
    generation = dict(tokens)
    if len(distinct) > 1:
        generation["eos_token_id"] = distinct
    generation = {key: value for key, value in generation.items() if value is not None}
    return GgufConfig(model, generation, interleaved)


class _Keys:
    """Typed access to the keys of one architecture; every failure names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        name = metadata.get("general.architecture")
        if name not in ARCHITECTURES:
            raise UserError(f"GGUF architecture {name!r} is not known; known are {', '.join(ARCHITECTURES)}")
        self.architecture = name
        if metadata.get("split.count", 1) not in (0, 1):
            raise UserError(
                "this GGUF file is one part of a split model; join the parts first (llama-gguf-split --merge)"
            )
        for key, value in metadata.items():
            short = key.removeprefix(f"{name}.")
            if short == key or short in _KNOWN_KEYS:
                continue
            if isinstance(value, list) or value not in _NEUTRAL_KEYS.get(short, ()):
                raise UserError(f"GGUF key {key} = {value!r} is not implemented by the {name} decoder")

    def get(self, key: str) -> object:
        return self._metadata.get(f"{self.architecture}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, list) and value and len(set(map(repr, value))) == 1:
            value = value[0]  # one value per layer, all the same
        if value is None:
            value = default
        if type(value) is not int or not 0 < value < 1 << 31:
            raise UserError(f"GGUF key {self.architecture}.{key} is {value!r}, expected one positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise UserError(f"GGUF key {self.architecture}.{key} is {value!r}, expected a positive number")
        return float(value)

    def require(self, key: str, expected: int, meaning: str) -> None:
        if self.get(key) not in (None, expected):
            raise UserError(
                f"GGUF key {self.architecture}.{key} is {self.get(key)!r}, expected {expected}: "
                f"{meaning} is not supported"
            )

    def token(self, key: str, vocab_size: int) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < vocab_size:
            raise UserError(f"GGUF key tokenizer.ggml.{key} is {value!r}, expected an id below {vocab_size}")
        return value


def _rope_scaling(reader: _Keys, context: int) -> dict[str, object] | None:
    """``rope_scaling`` of config.json from the scaling keys: linear, yarn or None."""
    kind = reader.get("rope.scaling.type")
    if kind is None:
        kind = "linear" if reader.get("rope.scale_linear") is not None else "none"
    if kind == "none":
        return None
    factor = clean_decimal(reader.number("rope.scaling.factor", reader.number("rope.scale_linear", 1.0)))
    attention = reader.number("rope.scaling.yarn_attn_factor", reader.number("rope.scaling.attn_factor", 1.0))
    if kind == "linear" and attention == 1.0:
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UserError(f"GGUF rope scaling {kind!r} is not known; known are none, linear, yarn and llama3")
    scaling: dict[str, object] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": reader.integer("rope.scaling.original_context_length", context),
    }
    for key in ("beta_fast", "beta_slow"):
        if reader.get(f"rope.scaling.yarn_{key}") is not None:
            scaling[key] = clean_decimal(reader.number(f"rope.scaling.yarn_{key}"))
    if attention != 1.0:
        # GGUF's factor multiplies YaRN's own magnitude scale (arXiv 2309.00071, eq. 22); HF's replaces it.
        scaling["attention_factor"] = clean_decimal(attention) * (0.1 * math.log(max(factor, 1.0)) + 1.0)
    return scaling


def _llama3_scaling(
    factors: np.ndarray, theta: float, head_dim: int, other: Mapping[str, object] | None
) -> dict[str, object] | None:
    """Recover llama3 parameters from the divisors it produced, or refuse.

    The divisors only depend on ``original / low`` and ``original / high``: with Llama's own low = 1 and
    high = 4, one blended divisor fixes ``original``, and recomputing all of them confirms it.
    """
    given = np.asarray(factors, np.float64).reshape(-1)
    if given.shape != (head_dim // 2,):
        raise UserError(f"GGUF tensor rope_freqs.weight has {given.size} values, expected {head_dim // 2}")
    if not (np.isfinite(given) & (given > 0)).all():
        raise UserError("GGUF tensor rope_freqs.weight holds values that are not positive")
    if np.array_equal(given, np.ones_like(given)):
        return dict(other) if other is not None else None
    if other is not None:
        raise UserError(f"GGUF has rope_freqs.weight and {other['rope_type']} scaling; only one is supported")
    low, high = 1.0, 4.0
    factor = clean_decimal(float(given.max()))
    inverse, _ = RopeConfig(head_dim, theta, "default", {}, 0).frequencies()
    originals = [8192]
    blended = np.flatnonzero((given > 1.0 + 1e-4) & (given < factor * (1.0 - 1e-4)))
    if blended.size:
        first = blended[0]
        smooth = (1.0 / given[first] - 1.0 / factor) / (1.0 - 1.0 / factor)
        originals.append(round(2.0 * math.pi / inverse[first] * (smooth * (high - low) + low)))
    for original in originals:
        scaling: dict[str, object] = {
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
        scaled, _ = RopeConfig(head_dim, theta, "llama3", scaling, 0).frequencies()
        if np.allclose(inverse / scaled, given, rtol=1e-4, atol=0.0):
            return {"rope_type": "llama3", **scaling}
    raise UserError("GGUF tensor rope_freqs.weight is not llama3 scaling with factors 1 and 4; not supported")
