"""The GGUF container: metadata as plain Python values, tensors as rows of raw bytes.

Format: the GGUF specification of the ggml project, versions 2 and 3, little-endian. Every count and
offset is checked against the file's size before it is used, so a truncated or hostile file ends in a
`UserError` and never in a crash, an endless loop or a huge allocation. The gguf library's own reader does
not promise that, and takes seconds over a large vocabulary.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ms_eagle.checkpoints.gguf import parts
from ms_eagle.errors import UserError
from ms_eagle.system import files

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF value type -> (struct code, numpy dtype), in the order of the specification.
_SCALARS = {
    0: ("<B", "<u1"),
    1: ("<b", "<i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    _BOOL: ("<B", "<u1"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}
_SPLIT = {"split.count": 1, "split.no": 0, "split.tensors.count": 0}
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies: ``shape`` slowest dimension first, ``offset`` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


class GgufFile:
    """An open GGUF file, memory-mapped.

    Attributes:
        path: the file.
        metadata: key to int, float, bool, str or list of those; 32-bit floats keep their exact value.
        tensors: name to `GgufTensor`, in file order.

    Raises:
        UserError: the file is missing, is not GGUF, is truncated or contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with files.open_plain(path) as source:
                self._size = source.seek(0, 2)
                self._map = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) if self._size else b""
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; expected a GGUF file") from error
        self._at = 0
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._read_header()
        self._parts: dict[str, GgufFile] = {}  # whose bytes hold a tensor that is not in this file

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """The model in a file and, if that is the first part of a split one, in the parts beside it.

        Raises:
            UserError: see above; another part than the first is named, or a part is missing.
        """
        first = cls(path)
        keys = {key: first.metadata.pop(key, default) for key, default in _SPLIT.items()}
        count, number = keys["split.count"], keys["split.no"]
        if count in (0, 1):
            return first
        if type(count) is not int or type(number) is not int or not 0 <= number < count:
            first._fail(f"it is part {number!r} of {count!r} of a split model")
        if number != 0:
            raise UserError(
                f"{path} is part {number + 1} of a split model of {count}; expected its first part, such as "
                f"{parts.part(path, 1).name if parts.count(path) > 1 else 'model-00001-of-00002.gguf'}"
            )
        if parts.count(path) != count:
            raise UserError(
                f"{path} is the first part of a split model of {count}; the others are looked for by names "
                f"such as model-00002-of-{count:05}.gguf: name them so, or join them with llama-gguf-split"
            )
        for index in range(1, count):
            first._add(parts.part(path, index + 1), index)
        return first

    def _add(self, path: Path, number: int) -> None:
        """Take in the tensors of a further part of a split model."""
        if not path.exists():
            raise UserError(f"{self.path}: part {number + 1} of the model, {path.name}, is missing: fetch it")
        part = GgufFile(path)
        if part.metadata.get("split.no") != number:
            part._fail(f"its split.no is {part.metadata.get('split.no')!r}, expected {number}")
        for name, tensor in part.tensors.items():
            if name in self.tensors:
                part._fail(f"tensor {name!r} is in an earlier part too")
            self.tensors[name], self._parts[name] = tensor, part

    def rows(self, name: str) -> np.ndarray:
        """Raw bytes of a tensor, ``[rows, bytes per row]`` uint8, mapped without a copy."""
        if name in self._parts:
            return self._parts[name].rows(name)
        tensor = self.tensors[name]
        rows = math.prod(tensor.shape[:-1])
        data = np.frombuffer(self._map, np.uint8, count=tensor.nbytes, offset=tensor.offset)
        return data.reshape(rows, tensor.nbytes // rows)

    def _fail(self, fault: str) -> NoReturn:
        raise UserError(f"{self.path} is not a usable GGUF file: {fault}; fetch or convert the file again")

    def _take(self, count: int) -> int:
        """Advance over ``count`` bytes and return where they start."""
        start = self._at
        if count > self._size - start:
            self._fail(f"it ends at byte {self._size}, inside a field that starts at byte {start}")
        self._at = start + count
        return start

    def _scalar(self, code: str) -> int | float:
        return struct.unpack_from(code, self._map, self._take(struct.calcsize(code)))[0]

    def _string(self) -> str:
        length = self._scalar("<Q")
        start = self._take(length)
        try:
            return self._map[start : start + length].decode()
        except UnicodeDecodeError:
            self._fail(f"the string at byte {start} is not UTF-8")

    def _count(self, what: str, smallest: int) -> int:
        """Read a count of items of at least ``smallest`` bytes each, bounded by what the file can hold."""
        count = self._scalar("<Q")
        if count * smallest > self._size - self._at:
            self._fail(f"it claims {count} {what}, more than its {self._size} bytes can hold")
        return count

    def _value(self, kind: int, depth: int = 0) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _SCALARS:
            self._fail(f"unknown value type {kind} before byte {self._at}")
        value = self._scalar(_SCALARS[kind][0])
        return bool(value) if kind == _BOOL else value

    def _array(self, depth: int) -> list[object]:
        if depth == _MAX_ARRAY_DEPTH:
            self._fail(f"arrays nested deeper than {_MAX_ARRAY_DEPTH} at byte {self._at}")
        kind = self._scalar("<I")
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind][1])
            count = self._count("array items", dtype.itemsize)
            start = self._take(count * dtype.itemsize)
            values = np.frombuffer(self._map, dtype, count=count, offset=start)
            return (values != 0).tolist() if kind == _BOOL else values.tolist()
        if kind not in (_STRING, _ARRAY):
            self._fail(f"unknown array item type {kind} before byte {self._at}")
        return [self._value(kind, depth + 1) for _ in range(self._count("array items", 8))]

    def _read_header(self) -> None:
        magic = bytes(self._map[:4])
        if magic != MAGIC:
            self._fail(f"it starts with {magic!r}, not {MAGIC!r}")
        self._at = len(MAGIC)
        version = self._scalar("<I")
        if version not in (2, 3):
            kind = "big-endian " if version & 0xFFFF == 0 else ""
            self._fail(f"{kind}version field {version:#x}, only little-endian versions 2 and 3 are read")
        tensor_count = self._count("tensors", 8 + 4 + 8 + 4 + 8)
        for _ in range(self._count("metadata keys", 8 + 4 + 1)):
            key = self._string()
            if key in self.metadata:
                self._fail(f"metadata key {key!r} appears twice")
            self.metadata[key] = self._value(self._scalar("<I"))
        tensors = [self._tensor_info() for _ in range(tensor_count)]
        self._place(tensors)

    def _tensor_info(self) -> GgufTensor:
        name = self._string()
        dimensions = self._scalar("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self._fail(f"tensor {name!r} has {dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
        number = self._scalar("<I")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            self._fail(f"tensor {name!r} has the unknown type {number}")
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row = shape[-1]
        if 0 in shape or row % block:
            self._fail(f"tensor {name!r} has shape {list(shape)}; {kind.name} rows come in blocks of {block}")
        return GgufTensor(name, shape, kind, self._scalar("<Q"), math.prod(shape) // block * block_bytes)

    def _place(self, tensors: list[GgufTensor]) -> None:
        """Turn offsets into file positions and check that the data is all there and does not overlap."""
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment!r}, expected a power of two")
        base = -(-self._at // alignment) * alignment
        end = base
        for tensor in sorted(tensors, key=lambda t: t.offset):
            start = base + tensor.offset
            if start % alignment or start < end:
                self._fail(f"the data of tensor {tensor.name!r} is misplaced at byte {start}")
            end = start + tensor.nbytes
            if end > self._size:
                self._fail(
                    f"truncated: tensor {tensor.name!r} ends at byte {end}, the file has {self._size} bytes"
                )
        for tensor in tensors:
            if tensor.name in self.tensors:
                self._fail(f"tensor {tensor.name!r} appears twice")
            placed = GgufTensor(tensor.name, tensor.shape, tensor.kind, base + tensor.offset, tensor.nbytes)
            self.tensors[tensor.name] = placed
