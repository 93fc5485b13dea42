"""A weight from checkpoint to kernel: its values, or the codes and scales of a quantised one.

Nothing is copied or widened before a kernel needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

STORED = {
    "float32": np.dtype("f4"),
    "float16": np.dtype("f2"),
    "bfloat16": np.dtype("u2"),  # the upper half of a float32
    "int8": np.dtype("i1"),
    "int4": np.dtype("u1"),  # two codes to a byte
}
"""The formats, and the dtypes of the arrays that hold them."""


@dataclass(frozen=True)
class Weight:
    """A matrix ``[out, in]``, or another array where the format is a float, as it is stored.

    A quantised entry is ``scales[row, column // group] * code``. The codes of int8 are -128..127; those of
    int4 are -8..7, stored as ``code + 8``: an even column in the lower half of a byte, the next one in the
    upper. With minima an int4 entry is ``scales * (code + 8) + minima`` instead.

    Attributes:
        format: a key of ``STORED``.
        values: of the dtype that ``STORED`` names; int4 ``[out, in / 2]``.
        scales: float32 or float16 ``[out, in / group]``, of int8 and int4 only.
        minima: alike, of int4 only, or None.
        group: columns that share a scale, of int8 and int4 only.

    Raises:
        ValueError: dtypes or shapes that do not belong together.
    """

    format: str
    values: np.ndarray
    scales: np.ndarray | None = None
    group: int = 0
    minima: np.ndarray | None = None

    def __post_init__(self) -> None:
        dtype = STORED.get(self.format)
        if dtype is None or self.values.dtype != dtype:
            raise ValueError(f"a weight of {self.values.dtype} in format {self.format}; expected {dtype}")
        if (self.scales is None) == self.quantised:
            raise ValueError(
                f"a weight in format {self.format} {'without' if self.quantised else 'with'} scales"
            )
        if self.scales is None:
            return
        grouped = (*self.shape[:-1], self.shape[-1] // max(1, self.group))
        if self.group < 1 or self.shape[-1] % self.group or self.scales.shape != grouped:
            raise ValueError(
                f"a weight of shape {self.shape} with scales of shape {self.scales.shape} for groups of "
                f"{self.group}; expected one for each group"
            )
        if self.minima is not None and (self.format != "int4" or self.minima.shape != grouped):
            raise ValueError(
                f"a weight in format {self.format} with minima of shape {self.minima.shape}; expected "
                f"int4 and {grouped}"
            )

    @classmethod
    def of(cls, values: np.ndarray) -> "Weight":
        """An array of float32 or float16 as it is."""
        return cls(str(values.dtype), values)

    @property
    def quantised(self) -> bool:
        """Whether there are codes instead of values."""
        return self.format in ("int8", "int4")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values: ``[out, in]`` of a matrix."""
        *others, last = self.values.shape or (1,)
        return (*others, 2 * last) if self.format == "int4" else self.values.shape

    def dense(self) -> np.ndarray:
        """The values: float32 and float16 as they are stored, everything else widened to float32, exactly."""
        if self.format == "bfloat16":
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        if self.scales is None:
            return self.values
        codes = self.values
        if self.format == "int4":
            codes = np.stack((codes & 15, codes >> 4), codes.ndim).reshape(self.shape).view(np.int8)
            codes = codes if self.minima is not None else codes - np.int8(8)
        last = codes.ndim - 1
        values = codes.astype(np.float32) * _repeated(self.scales, self.group, last)
        return values if self.minima is None else values + _repeated(self.minima, self.group, last)


Read = Callable[[str], Weight]
"""Returns a tensor of a checkpoint by its name."""


def joined(weights: Sequence[Weight]) -> Weight:
    """One weight with the rows of all, one after another; of several formats, in floats."""
    first = weights[0]
    if len(weights) == 1:
        return first
    kinds = {(each.format, each.group, each.minima is None) for each in weights}
    if len(kinds) > 1:
        return Weight.of(np.concatenate([each.dense() for each in weights]))
    parts = {
        name: [array for each in weights if (array := getattr(each, name)) is not None]
        for name in ("values", "scales", "minima")
    }
    return replace(
        first, **{name: np.concatenate(arrays) if arrays else None for name, arrays in parts.items()}
    )


def _repeated(groups: np.ndarray, group: int, axis: int) -> np.ndarray:
    """One number for each column, float32, of one for each group."""
    return np.repeat(groups.astype(np.float32, copy=False), group, axis)
