"""The safetensors container: a strict header reader and a streaming writer.

Format: 8 bytes little-endian header length, a JSON header mapping names to dtype, shape and offsets, then
the tensors' bytes without gaps (github.com/huggingface/safetensors, README, "Format").
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import files

_PREFIX = 8
_MAX_HEADER = 100_000_000  # the limit of the reference implementation
_MOST, _MOST_DIMENSIONS = 1 << 63, 32  # of a size or offset; of numpy's arrays
_ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: dtype name as in the header, shape, and byte offset from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> dict[str, Entry]:
    """Read and check the header of a safetensors file.

    Returns: tensor name to `Entry`, in the order of the header; further names of tied tensors come last.

    Raises:
        UserError: the file is missing or truncated, its header is not valid JSON of the format, or the
            tensors leave gaps, overlap or do not match their shapes.
    """
    try:
        with files.open_plain(path) as source:
            size = os.fstat(source.fileno()).st_size
            prefix = source.read(_PREFIX)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < _PREFIX or length > min(_MAX_HEADER, size - _PREFIX):
                raise _unusable(path, f"its {size} bytes end inside the header")
            raw = source.read(length)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; expected a safetensors file") from error
    try:
        header = json.loads(raw, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _unusable(path, "its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, _PREFIX + length) for name, value in header.items()}
    _check_layout(path, entries, _PREFIX + length, size)
    if isinstance(metadata, dict):  # safetensors' save_model keeps one of several names of a tensor there
        aliases = {name: stored for name, stored in metadata.items() if str(stored) in entries}
        entries |= {name: entries[stored] for name, stored in aliases.items() if name not in entries}
    return entries


def write(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    chunks: Callable[[str], Iterable[bytes | memoryview]],
) -> str:
    """Write a safetensors file tensor by tensor, holding one chunk in memory at a time.

    Args:
        path: written directly: give a path in a temporary directory. Synced to disk before returning.
        tensors: name to dtype, as headers name it, and shape, in the order of writing.
        chunks: gives the bytes of a tensor in row-major order, as pieces that concatenate to it.

    Returns: hexadecimal SHA-256 of the file.

    Raises:
        ValueError: the chunks of a tensor do not add up to its shape.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + _ITEM_SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligned data can be memory-mapped
    digest = hashlib.sha256()
    with open(path, "wb") as target:

        def put(data: bytes | memoryview) -> None:
            target.write(data)
            digest.update(data)

        put(len(text).to_bytes(_PREFIX, "little"))
        put(text)
        for name, (dtype, shape) in tensors.items():
            written = 0
            for chunk in chunks(name):
                put(chunk)
                written += memoryview(chunk).nbytes
            if written != _ITEM_SIZES[dtype] * math.prod(shape):
                raise ValueError(f"{written} bytes written for {name}, expected {dtype} of shape {shape}")
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def write_float32(
    path: Path, shapes: Mapping[str, tuple[int, ...]], chunks: Callable[[str], Iterable[np.ndarray]]
) -> str:
    """`write` for float32 alone: ``chunks`` gives a tensor's values as arrays.

    Raises:
        ValueError: the chunks of a tensor are not float32 or do not add up to its shape.
    """

    def pieces(name: str) -> Iterable[memoryview]:
        for chunk in chunks(name):
            if chunk.dtype != np.float32:
                raise ValueError(f"chunk of {name} is {chunk.dtype}, expected float32")
            yield np.ascontiguousarray(chunk, "<f4").reshape(-1).data

    return write(path, {name: ("F32", shape) for name, shape in shapes.items()}, pieces)


def _unusable(path: Path, fault: str) -> UserError:
    return UserError(f"{path} is not a usable safetensors file: {fault}; fetch the file again")


def _unique(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _unusable(path, "a name appears twice in its header")
    return result


def _is_index(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _entry(path: Path, name: str, value: object, base: int) -> Entry:
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    well_formed = (
        isinstance(shape, list)
        and len(shape) <= _MOST_DIMENSIONS  # the product of a million sizes takes hours
        and all(map(_is_index, shape))
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(map(_is_index, offsets))
        and isinstance(dtype, str)
    )
    if not well_formed:
        raise _unusable(path, f"the header entry of {name!r} is malformed")
    if dtype not in _ITEM_SIZES:
        raise _unusable(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    start, stop = offsets
    if stop - start != math.prod(shape) * _ITEM_SIZES[dtype]:
        raise _unusable(path, f"tensor {name!r} has {stop - start} bytes, not {dtype} of shape {shape}")
    return Entry(dtype, tuple(shape), base + start, stop - start)


def _check_layout(path: Path, entries: Mapping[str, Entry], base: int, size: int) -> None:
    end = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != end:
            raise _unusable(path, f"tensor {name!r} starts at byte {entry.offset}, expected {end}")
        end += entry.nbytes
    if end > size:
        raise _unusable(path, f"truncated: {size} bytes where the header promises {end}")
    if end < size:
        raise _unusable(path, f"{size - end} bytes after the last tensor")
