"""The tensors of a GGUF file by their Hugging Face names: codes as they are stored, memory-mapped."""

import re

import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

from ms_eagle.checkpoints.gguf.file import GgufFile
from ms_eagle.checkpoints.gguf.importing import (
    ROPE_FACTORS,
    SUPPORTED,
    hugging_face_name,
    read_rows,
    rotary_rows,
)
from ms_eagle.checkpoints.pointer import Pointer
from ms_eagle.errors import UserError
from ms_eagle.kernels.formats import GROUP
from ms_eagle.models.weight import Weight

_FLOATS = {Kind.F32: ("float32", "<f4"), Kind.F16: ("float16", "<f2"), Kind.BF16: ("bfloat16", "<u2")}
_HALF = 2  # bytes


class GgufTensors:
    """See ``directory.Tensors``."""

    def __init__(self, file: GgufFile, head_dim: int) -> None:
        """Take an open file; ``head_dim`` as in ``Pointer``."""
        self._file, self._head_dim = file, head_dim
        self._theirs = {hugging_face_name(name): name for name in file.tensors if name != ROPE_FACTORS}
        self.names = tuple(sorted(self._theirs))
        kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
        self.quantised = not kinds <= _FLOATS.keys()
        self.converted = tuple(sorted(kind.name for kind in kinds - _FLOATS.keys() - _CODES.keys()))

    @classmethod
    def open(cls, pointer: Pointer) -> "GgufTensors":
        """Open the file that a directory points at.

        Raises:
            UserError: it is gone or damaged.
        """
        return cls(GgufFile.open(pointer.gguf), pointer.head_dim)

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``directory.Tensors``."""
        return self._file.tensors[self._their(name)].shape

    def dtype(self, name: str) -> str:
        """See ``directory.Tensors``; as GGUF names it: ``F32``, ``Q4_1``, ..."""
        return self._file.tensors[self._their(name)].kind.name

    def readable(self, name: str, integers: bool) -> bool:
        """See ``directory.Tensors``."""
        return not integers and self._file.tensors[self._their(name)].kind in SUPPORTED

    def weight(self, name: str) -> Weight:
        """See ``directory.Tensors``."""
        theirs = self._their(name)
        kind, order = self._file.tensors[theirs].kind, self._order(name)
        stored = self._file.rows(theirs)
        if kind in _CODES:
            weight = _CODES[kind](stored if order is None else stored[order])
        elif kind in _FLOATS and order is None:
            what, dtype = _FLOATS[kind]
            weight = Weight(what, stored.view(dtype).reshape(self.shape(name)))
        else:  # read_rows refuses what is not finite by itself
            return Weight.of(
                np.concatenate(list(read_rows(self._file, theirs, order))).reshape(self.shape(name))
            )
        numbers = (weight.scales, weight.minima) if weight.quantised else (weight.dense(),)
        if not all(each is None or np.isfinite(each).all() for each in numbers):
            raise UserError(
                f"{self._file.path}: tensor {theirs!r} holds NaN or infinity; fetch the file again"
            )
        return weight

    def integers(self, name: str) -> np.ndarray:
        """See ``directory.Tensors``."""
        raise UserError(f"{self._file.path}: tensor {self._their(name)!r} holds no integers")

    def _their(self, name: str) -> str:
        if name not in self._theirs:
            raise UserError(f"{self._file.path} has no tensor for {name!r}")
        return self._theirs[name]

    def _order(self, name: str) -> np.ndarray | None:
        """The stored row that comes at each place, where that is not its own."""
        if self._head_dim and re.search(r"\.[qk]_proj\.", name):
            return rotary_rows(self.shape(name)[0] // self._head_dim, self._head_dim)
        return None


def _q8_0(rows: np.ndarray) -> Weight:
    blocks = rows.reshape(len(rows), -1, _HALF + GROUP)
    codes = blocks[:, :, _HALF:].view(np.int8).reshape(len(rows), -1)
    return Weight("int8", codes, _half(blocks, 0), GROUP)


def _q4_0(rows: np.ndarray) -> Weight:
    blocks = rows.reshape(len(rows), -1, _HALF + GROUP // 2)
    return Weight("int4", _neighbours(blocks[:, :, _HALF:]), _half(blocks, 0), GROUP)


def _q4_1(rows: np.ndarray) -> Weight:
    blocks = rows.reshape(len(rows), -1, 2 * _HALF + GROUP // 2)
    codes = _neighbours(blocks[:, :, 2 * _HALF :])
    return Weight("int4", codes, _half(blocks, 0), GROUP, _half(blocks, 1))


_CODES = {Kind.Q8_0: _q8_0, Kind.Q4_0: _q4_0, Kind.Q4_1: _q4_1}


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The number at a place of every block, float16 ``[rows, blocks]``."""
    return np.ascontiguousarray(blocks[:, :, _HALF * at : _HALF * (at + 1)]).view("<f2")[:, :, 0]


def _neighbours(codes: np.ndarray) -> np.ndarray:
    """GGUF has code ``i`` of a block in the lower half of a byte with code ``i + 16`` in the upper one; a
    ``Weight`` has neighbours. ``[rows, blocks, 16] -> [rows, columns / 2]``."""
    even, odd = codes[:, :, 0::2], codes[:, :, 1::2]
    low = (even & 15) | (odd & 15) << 4
    high = even >> 4 | (odd & 0xF0)
    return np.concatenate((low, high), 2).reshape(len(codes), -1)
