"""A trained head as others read it: SafeAILab's layout, in safetensors and config.json."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.errors import UserError
from ms_eagle.system import files, json_file
from ms_eagle.training.draft_vocabulary import DraftVocabulary

_NAMES = (
    (r"^layers\.0\.", "midlayer."),
    (r"\.attention\.", ".self_attn."),
    (r"^(midlayer|layers\.\d+)\.input_norm\.", r"\1.input_layernorm."),
    (r"\.post_attention_norm\.", ".post_attention_layernorm."),
)


def published_name(name: str) -> str:
    """The name in SafeAILab's layout of one of our tensors (docs/head_formats.md, "Tensors")."""
    for ours, theirs in _NAMES:
        name = re.sub(ours, theirs, name)
    return name


def published_config(config: HeadConfig, dtype: str) -> dict[str, object]:
    """config.json of a head in SafeAILab's keys, with its tap ids, which that layout lacks, as inputs."""
    rope = config.rope
    scaling = None if rope.scaling == "default" else {"rope_type": rope.scaling, **rope.parameters}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": config.hidden_act,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "max_position_embeddings": rope.max_positions,
        head_taps.KEY: list(config.taps),
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }


def write_head(
    directory: Path,
    config: HeadConfig,
    tensors: Mapping[str, np.ndarray],
    vocabulary: DraftVocabulary,
    dtype: str,
) -> None:
    """Write config.json and model.safetensors; each file is replaced whole or left as it was.

    Args:
        directory: is made where it is missing.
        config: of the head.
        tensors: float32, by the names of ``config.tensor_shapes()``.
        vocabulary: its draft vocabulary.
        dtype: ``float16`` or ``float32``.

    Raises:
        UserError: a weight is too large for float16, or not finite; the files cannot be written.
    """
    published = {published_name(name): _stored(name, values, dtype) for name, values in tensors.items()}
    published |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    try:
        files.write_bytes(directory / "model.safetensors", save(published, metadata={"format": "pt"}))
        json_file.write_object(directory / "config.json", published_config(config, dtype))
    except OSError as error:
        raise UserError(
            f"cannot write the head to {directory}: {error.strerror}; an older one there is untouched."
        ) from error


def _stored(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values.astype(dtype))
    if not np.isfinite(stored).all():
        raise UserError(
            f"the head's tensor {name} reaches {np.abs(values).max():g}, which {dtype} cannot hold: set "
            "output.dtype=float32, or lower the learning rate."
        )
    return stored
