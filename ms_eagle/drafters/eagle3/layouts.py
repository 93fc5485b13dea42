"""Heads as other code reads them: what each code base assumes, what it cannot do, and its config.json.

A key is written only where it differs from what the code assumes without it, because the same key means
different things to different code (docs/head_formats.md, "Layouts that are written").
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.formats import SAFEAILAB, SPECFORGE, SPECULATORS, HeadFormat
from ms_eagle.errors import UserError
from ms_eagle.system import files, json_file


@dataclass(frozen=True)
class Layout:
    """One of ``LAYOUTS``.

    Attributes:
        format: what a reader recognises it as.
        options: fields of ``HeadConfig`` that the code which reads it carries out where they are set.
        readers: that code.
    """

    format: HeadFormat
    options: frozenset[str]
    readers: str


LAYOUTS = {
    "sglang": Layout(
        SPECFORGE,
        frozenset({"fc_norm", "norm_output", "shares_lm_head", "own_embedding"}),
        "SGLang and SpecForge; vLLM where the taps are the default ones",
    ),
    "safeailab": Layout(SAFEAILAB, frozenset({"own_embedding"}), "SafeAILab's EAGLE and vLLM"),
    "speculators": Layout(
        SPECULATORS,
        frozenset(
            {
                "fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", "qkv_bias", "o_bias",
                "mlp_bias", "qk_norm", "own_embedding",
            }
        ),
        "vLLM and speculators",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TeacherFacts:
    """What a head's files say about its teacher.

    Attributes:
        num_layers: L.
        architecture: as in its config.json.
        source: ``model.source`` or the like.
    """

    num_layers: int
    architecture: str
    source: str


def obstacles(config: HeadConfig, layout: str, num_layers: int) -> list[str]:
    """What of a head the readers of a layout would leave out or take for something else.

    Args:
        config: of the head.
        layout: of ``LAYOUTS``.
        num_layers: of the teacher.
    """
    default = head_taps.default_taps(num_layers)
    own_width = config.hidden_size != config.target_hidden_size
    lost = [
        field.name
        for field in fields(config)
        if getattr(config, field.name) is True and field.name not in LAYOUTS[layout].options
    ]
    if layout == "safeailab":
        others = {
            f"{config.num_layers} layers": config.num_layers > 1,
            f"taps {list(config.taps)} for the default ones": config.taps != default,
            f"head_dim {config.head_dim}": config.num_heads * config.head_dim != config.hidden_size,
            f"{config.rope.scaling} rope scaling": config.rope.scaling != "default",
        }
    elif layout == "sglang":
        others = {  # it overwrites an embedding of the teacher's width, and takes E values for a feature
            "an embedding of its own": config.own_embedding and not own_width,
            "taps as wide as a feature": config.num_taps * config.target_hidden_size == config.hidden_size,
        }
    else:
        others = {
            f"hidden size {config.hidden_size} beside the teacher's": own_width,
            "biases of q, k, v or of o alone": config.qkv_bias != config.o_bias,
            "mlp_bias with qk_norm": config.mlp_bias and config.qk_norm,
        }
    lost += [what for what, there in others.items() if there]
    if layout != "safeailab" and config.taps != default:
        try:
            nested, ids = layout == "sglang", _tap_ids(config, layout)
            read, _ = head_taps.from_config(ids, nested, config.num_taps, num_layers)
        except UserError:
            read = ()
        if read != config.taps:
            lost.append(f"taps {list(config.taps)}, whose ids mean others")
    return lost


def chosen(config: HeadConfig, layout: str | None, num_layers: int) -> str:
    """The layout that was asked for, or the first of ``LAYOUTS`` that can say all of the head.

    Raises:
        UserError: the layout, or every one, would lose something of the head.
    """
    able = [name for name in LAYOUTS if not obstacles(config, name, num_layers)]
    if layout in able or (layout is None and able):
        return layout or able[0]
    lost = ", ".join(obstacles(config, layout or next(iter(LAYOUTS)), num_layers))
    raise UserError(
        f"the layout {layout or 'of any reader'} cannot say what the head has ({lost}), so its readers would "
        f"draft noise; expected {' or '.join(able) or 'another head: no layout can say all of it'}."
    )


def without_copied_embedding(head: Head, embedding: np.ndarray) -> Head:
    """The head without an embedding of its own where that is the teacher's, ``[V, E]``, up to rounding."""
    own = head.tensors.get("embed.weight")
    if own is None or own.shape != embedding.shape or not np.allclose(own, embedding, 1e-2, 1e-6):
        return head
    tensors = {name: values for name, values in head.tensors.items() if name != "embed.weight"}
    return replace(head, config=replace(head.config, own_embedding=False), tensors=tensors)


def described(
    config: HeadConfig, layout: str, teacher: TeacherFacts, dtype: str, trained_by: str | None = None
) -> dict[str, object]:
    """config.json of a head.

    Args:
        config: without ``obstacles``.
        layout: of ``LAYOUTS``.
        teacher: its teacher.
        dtype: ``float16`` or ``float32``.
        trained_by: who made sure that the head does what its config says; None where nobody knows.
    """
    rope, plain_dim = config.rope, config.num_heads * config.head_dim == config.hidden_size
    layer: dict[str, object] = {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_act": config.hidden_act,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "num_hidden_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "max_position_embeddings": rope.max_positions,
    }
    if not plain_dim or layout == "speculators":  # Qwen3's default is another one
        layer["head_dim"] = config.head_dim
    if rope.scaling != "default":
        layer["rope_scaling"] = {"rope_type": rope.scaling, **rope.parameters}
    names = ("fc_norm", "norm_before_fc", "norm_output")
    switches: dict[str, object] = {name: True for name in names if getattr(config, name)}
    if config.hidden_size != config.target_hidden_size:
        switches["target_hidden_size"] = config.target_hidden_size  # SafeAILab's code: keep your embedding
    if config.taps != head_taps.default_taps(teacher.num_layers) or layout == "speculators":
        ids = {head_taps.KEY: _tap_ids(config, layout)}
        switches |= {"eagle_config": ids} if layout == "sglang" else ids
    common = {
        "draft_vocab_size": None if config.shares_lm_head else config.draft_vocab_size,
        **switches,
        **({} if trained_by is None else {"trained_by": trained_by}),
        "torch_dtype": dtype,
    }
    if layout != "speculators":
        name = "LlamaForCausalLMEagle3" if layout == "sglang" else "LlamaForCausalLM"
        return {"architectures": [name], **layer, **common}
    biases = {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "norm_before_residual": config.norm_before_residual,  # absent, speculators and vLLM differ
        **common,
        "transformer_layer_config": {**layer, **{key: True for key, there in biases.items() if there}},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {
                "name_or_path": _hub_name(teacher.source),
                "architectures": [teacher.architecture],
            },
        },
    }


def tensor_name(name: str, layout: str) -> str:
    """The name in a layout of one of our tensors (docs/head_formats.md, "Tensors")."""
    name = re.sub(r"^embed\.", "embed_tokens.", name).replace(".attention.", ".self_attn.")
    name = name.replace(".post_attention_norm.", ".post_attention_layernorm.")
    later = re.match(r"layers\.[1-9]", name) is not None
    norm = "hidden_norm" if later and layout == "sglang" else "input_layernorm"
    name = re.sub(r"^(layers\.\d+)\.input_norm\.", rf"\1.{norm}.", name)
    return name if layout == "speculators" else name.replace("layers.0.", "midlayer.")


def write_head(
    directory: Path,
    config: HeadConfig,
    tensors: Mapping[str, np.ndarray],
    target_ids: np.ndarray,
    *,
    layout: str,
    teacher: TeacherFacts,
    dtype: str,
    trained_by: str | None = None,
) -> None:
    """Write config.json and model.safetensors; each file is replaced whole or left as it was.

    Args:
        directory: is made where it is missing.
        config: of the head.
        tensors: float32, by the names of ``config.tensor_shapes()``.
        target_ids: ``[V_d]``, the target id of each draft id.
        layout: as ``chosen`` gives it.
        teacher, dtype, trained_by: as for ``described``.

    Raises:
        UserError: a weight is too large for float16, or not finite; the files cannot be written.
    """
    ids, tensors = target_ids.astype(np.int64), dict(tensors)
    if ids.size == config.vocab_size and not config.shares_lm_head:  # readers drop the map of a full one
        tensors["lm_head.weight"] = tensors["lm_head.weight"][np.argsort(ids)]
        ids = np.sort(ids)
    stored = {tensor_name(name, layout): _stored(name, values, dtype) for name, values in tensors.items()}
    if not np.array_equal(ids, np.arange(config.vocab_size)):
        stored["d2t"] = ids - np.arange(ids.size)
        stored["t2d"] = np.isin(np.arange(config.vocab_size), ids)
    try:
        files.write_bytes(directory / "model.safetensors", save(stored, metadata={"format": "pt"}))
        json_file.write_object(
            directory / "config.json", described(config, layout, teacher, dtype, trained_by)
        )
    except OSError as error:
        raise UserError(
            f"cannot write the head to {directory}: {error.strerror}; an older one there is untouched."
        ) from error


def _tap_ids(config: HeadConfig, layout: str) -> list[int]:
    """SGLang counts outputs of blocks, vLLM and speculators count inputs."""
    return [tap - (layout == "sglang") for tap in config.taps]


def _hub_name(source: str) -> str | None:
    """What transformers can load: a name on the hub or a directory; None for any other source."""
    if source.startswith("hf:"):
        return source.removeprefix("hf:")
    return source if Path(source).is_dir() else None


def _stored(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values.astype(dtype))
    if not np.isfinite(stored).all():
        raise UserError(
            f"the head's tensor {name} reaches {np.abs(values).max():g}, which {dtype} cannot hold: write "
            "float32, or train with a lower learning rate."
        )
    return stored
