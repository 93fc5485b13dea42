"""From a GGUF file to a Hugging Face model directory: over the file as it is, or in float32."""

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from ms_eagle.checkpoints import pointer, safetensors_file
from ms_eagle.checkpoints.gguf.config import GgufConfig, from_metadata
from ms_eagle.checkpoints.gguf.file import GgufFile
from ms_eagle.checkpoints.gguf.tokenizer import write_tokenizer
from ms_eagle.checkpoints.pointer import Pointer
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.system import json_file
from ms_eagle.system.progress import Progress

SUPPORTED = (
    Kind.F32, Kind.F16, Kind.BF16,
    Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0,
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS, Kind.MXFP4,
)  # fmt: skip

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
_CHUNK_VALUES = 1 << 22  # 16 MiB of float32 at a time


def prepare(gguf: Path, directory: Path) -> None:
    """Write all of a model directory but the weights, which stay where they are (``pointer``).

    Args:
        gguf: the file to read.
        directory: an existing directory, which may hold the file and nothing else.

    Raises:
        UserError: as for ``convert``.
    """
    source = GgufFile.open(gguf)
    try:
        config = _described(source, directory)
    except UserError as error:
        raise UserError(f"{gguf}: {error}") from error
    pointer.write(directory, Pointer(gguf, config.model["head_dim"] if config.interleaved else 0))


def convert(gguf: Path, directory: Path, progress: Progress | None = None) -> None:
    """Write a Hugging Face model directory (fp32 safetensors, configs, tokenizer) from a GGUF file.

    Memory stays near one 16 MiB chunk whatever the size of the model.

    Args:
        gguf: the file to read.
        directory: an existing, empty directory.
        progress: shows the conversion when given.

    Raises:
        UserError: the file is damaged, or holds an architecture, tensor type or tensor that is not supported.
    """
    source = GgufFile.open(gguf)
    try:
        _convert(source, directory, progress if progress is not None else Progress(quiet=True))
    except UserError as error:
        raise UserError(f"{gguf}: {error}") from error


def _described(source: GgufFile, directory: Path) -> GgufConfig:
    """Write tokenizer and configurations."""
    config = _read_config(source)
    _check_tensors(source, _names(source), config)
    write_tokenizer(source.metadata, directory)
    json_file.write_object(directory / "config.json", config.model)
    json_file.write_object(directory / "generation_config.json", config.generation)
    return config


def _names(source: GgufFile) -> dict[str, str]:
    """GGUF's name of every tensor by that of Hugging Face."""
    return {hugging_face_name(name): name for name in source.tensors if name != ROPE_FACTORS}


def _convert(source: GgufFile, directory: Path, progress: Progress) -> None:
    names = _names(source)
    shapes = {name: source.tensors[names[name]].shape for name in sorted(names)}
    size = 4 * sum(map(math.prod, shapes.values()))
    free = shutil.disk_usage(directory).free
    if free < size:
        raise UserError(
            f"the float32 weights need {size / 1e9:.1f} GB in {directory}, where {free / 1e9:.1f} GB are free"
        )
    config = _described(source, directory)
    with progress.bytes(f"converting {source.path.name}", size) as step:

        def chunks(name: str) -> Iterator[np.ndarray]:
            order = _source_rows(config, name, shapes[name])
            for chunk in read_rows(source, names[name], order):
                yield chunk
                step.advance(chunk.nbytes)

        safetensors_file.write_float32(directory / "model.safetensors", shapes, chunks)


def hugging_face_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor: ``output_norm.weight`` is ``model.norm.weight``.

    Raises:
        UserError: a tensor that the supported architectures do not have.
    """
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _BLOCK:
        raise UserError(f"tensor {name!r} belongs to no supported architecture")
    return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.{match[3]}"


def gguf_name(name: str) -> str:
    """GGUF name of a Hugging Face tensor of a supported architecture: the inverse of `hugging_face_name`."""
    for short, long in _TOP.items():
        if name == long:
            return short
    _, _, layer, part = name.split(".", 3)
    stem, _, kind = part.rpartition(".")
    short = next(short for short, long in _BLOCK.items() if long == stem)
    return f"blk.{layer}.{short}.{kind}"


def rotary_rows(heads: int, head_dim: int) -> np.ndarray:
    """Stored row for each row of a rotary projection, ``[heads * head_dim]`` int64.

    GGUF's llama files pair rotary dimensions as neighbours (2i, 2i + 1); Hugging Face pairs (i, i + d/2).
    Row ``i`` of a head comes from ``2 i`` in the first half and from ``2 (i - d/2) + 1`` in the second.
    """
    half = np.arange(head_dim // 2)
    within = np.concatenate([2 * half, 2 * half + 1])
    return (np.arange(heads)[:, None] * head_dim + within).reshape(-1)


def read_rows(source: GgufFile, name: str, order: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Dequantise a tensor piece by piece.

    Args:
        source: the open file.
        name: GGUF name of the tensor.
        order: optional ``[rows]`` int64, the stored row that comes at each place. A vector counts as one
            value per row.

    Yields: float32 ``[n, row]`` pieces of whole rows, about 16 MiB each.

    Raises:
        UserError: a NaN or an infinite value, the mark of damaged data.
    """
    tensor = source.tensors[name]
    stored = source.rows(name)
    if order is not None and len(tensor.shape) == 1:
        stored = stored.reshape(order.size, -1)  # only unblocked types come here: see _check_tensors
    step = max(1, _CHUNK_VALUES // max(1, math.prod(tensor.shape) // stored.shape[0]))
    for start in range(0, stored.shape[0], step):
        stop = min(start + step, stored.shape[0])
        raw = stored[start:stop] if order is None else stored[order[start:stop]]
        values = np.asarray(dequantize(np.ascontiguousarray(raw), tensor.kind), np.float32)
        if not np.isfinite(values).all():
            raise UserError(f"tensor {name!r} holds NaN or infinity; fetch the file again")
        yield values


def _read_config(source: GgufFile) -> GgufConfig:
    embedding = source.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise UserError("expected a two-dimensional tensor 'token_embd.weight', found none")
    factors = None
    if ROPE_FACTORS in source.tensors:
        _check_kind(source, ROPE_FACTORS)
        factors = np.concatenate(list(read_rows(source, ROPE_FACTORS))).reshape(-1)
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > embedding.shape[0]:
        raise UserError(f"{len(tokens)} tokens but only {embedding.shape[0]} rows in 'token_embd.weight'")
    return from_metadata(
        source.metadata,
        vocab_size=embedding.shape[0],
        tied="output.weight" not in source.tensors,
        attention_bias="blk.0.attn_q.bias" in source.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in source.tensors,
        rope_factors=factors,
    )


def _check_kind(source: GgufFile, name: str) -> None:
    kind = source.tensors[name].kind
    if kind not in SUPPORTED:
        known = ", ".join(k.name for k in SUPPORTED)
        raise UserError(f"tensor {name!r} has type {kind.name}; readable types are {known}")


def _check_tensors(source: GgufFile, names: Mapping[str, str], config: GgufConfig) -> None:
    layers = config.model["num_hidden_layers"]
    if layers > len(names):  # before building a table for it
        raise UserError(f"the metadata promises {layers} blocks, the file has {len(names)} tensors")
    expected = DecoderConfig.from_hf(config.model).tensor_shapes()
    for what, strays in (
        ("is missing", sorted(expected.keys() - names.keys())),
        ("was not expected", sorted(names.keys() - expected.keys())),
    ):
        if strays:
            raise UserError(f"tensor {names.get(strays[0], strays[0])!r} {what} ({len(strays)} such tensors)")
    for name, shape in expected.items():
        tensor = source.tensors[names[name]]
        if tensor.shape != shape:
            raise UserError(f"tensor {tensor.name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        _check_kind(source, tensor.name)
        if len(shape) == 1 and tensor.kind not in (Kind.F32, Kind.F16, Kind.BF16):
            raise UserError(f"tensor {tensor.name!r} is a vector of {tensor.kind.name}, expected F32 or F16")


def _source_rows(config: GgufConfig, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    if config.interleaved and re.search(r"\.[qk]_proj\.", name):
        head_dim = config.model["head_dim"]
        return rotary_rows(shape[0] // head_dim, head_dim)
    return None
