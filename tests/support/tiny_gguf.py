"""GGUF files of tiny models, written with the gguf library."""

from pathlib import Path

import gguf
import numpy as np
import transformers
from gguf.constants import GGMLQuantizationType as Kind

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def name_of(hugging_face: str) -> str:
    stem, _, kind = hugging_face.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_BLOCK[part]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in GGUF's rotary order, spelled out: pair i of a head, (i, i + d/2), becomes rows (2i, 2i + 1)."""
    result = np.empty_like(weight)
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            result[head * size + 2 * i] = weight[head * size + i]
            result[head * size + 2 * i + 1] = weight[head * size + i + size // 2]
    return result


def tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """The model's weights under GGUF names, in GGUF's row order."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    result = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = value.numpy()
        part = name.split(".")[-2]
        if part in heads and config.model_type == "llama":
            values = interleave(values, heads[part])
        result[name_of(name)] = values
    return result


def metadata(model: transformers.PreTrainedModel) -> dict[str, object]:
    """Model and vocabulary keys; a value's Python type says its GGUF type (int: uint32)."""
    config = model.config
    name = config.model_type
    letters = [chr(0x100 + index) for index in range(config.vocab_size - 3)]
    return {
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.key_length": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*letters, letters[0] + letters[1], "<s>", "</s>"],
        "tokenizer.ggml.token_type": [1] * (config.vocab_size - 2) + [3, 3],
        "tokenizer.ggml.merges": [f"{letters[0]} {letters[1]}"],
        "tokenizer.ggml.bos_token_id": config.vocab_size - 2,
        "tokenizer.ggml.eos_token_id": config.vocab_size - 1,
    }


def write(
    path: Path,
    architecture: str,
    keys: dict[str, object],
    arrays: dict[str, np.ndarray],
    kind: Kind = Kind.F32,
) -> Path:
    """Write a file: matrices are quantised to ``kind``, vectors stay F32, uint8 is ``kind`` already."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, values in arrays.items():
        if values.dtype == np.uint8:
            writer.add_tensor(name, values, raw_dtype=kind)
        elif values.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save(path: Path, model: transformers.PreTrainedModel, kind: Kind = Kind.F32, **extra: object) -> Path:
    """Write a whole model; ``extra`` maps keys (dots as ``__``, without the architecture) to values."""
    name = model.config.model_type
    keys = metadata(model) | {f"{name}.{key.replace('__', '.')}": value for key, value in extra.items()}
    return write(path, name, keys, tensors(model), kind)
