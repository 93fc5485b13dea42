"""Weights as kernels take them: codes in groups that the native ones know, everything else as floats."""

from typing import NamedTuple, Protocol

import numpy as np

GROUP = 32
"""Columns that share a scale (``kGroup`` in ``cpu/codes.h``), as in GGUF's Q8_0, Q4_0 and Q4_1."""


class StoredWeight(Protocol):
    """What kernels need of a ``models.weight.Weight``, which says what the formats are."""

    @property
    def format(self) -> str:
        """Such as ``float32`` or ``int8``."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """``[out, in]`` of a matrix."""
        ...

    @property
    def values(self) -> np.ndarray:
        """As they are stored."""
        ...

    @property
    def scales(self) -> np.ndarray | None:
        """``[out, in / group]`` of codes."""
        ...

    @property
    def minima(self) -> np.ndarray | None:
        """Alike, of some codes."""
        ...

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        ...

    def dense(self) -> np.ndarray:
        """The values, float32 or float16."""
        ...


class Codes(NamedTuple):
    """What native kernels multiply with as it is stored.

    Attributes:
        bits: 8 or 4.
        codes: ``[out, in]`` int8, or ``[out, in / 2]`` uint8 with even columns in the lower halves.
        scales: float16 ``[out, in / GROUP]``.
        minima: alike, or None.
        shape: ``(out, in)``.
    """

    bits: int
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None
    shape: tuple[int, int]


def codes(weight: StoredWeight) -> Codes | None:
    """A matrix's codes; None for floats, and for groups or scales that the native kernels do not have."""
    scales, minima = weight.scales, weight.minima
    if scales is None or len(weight.shape) != 2 or weight.group % GROUP:
        return None
    exact = [None if each is None else _half(each, weight.group // GROUP) for each in (scales, minima)]
    if exact[0] is None or (minima is not None and exact[1] is None):
        return None
    out, columns = weight.shape
    return Codes(8 if weight.format == "int8" else 4, weight.values, exact[0], exact[1], (out, columns))


def _half(numbers: np.ndarray, times: int) -> np.ndarray | None:
    """Numbers in half precision, one for each ``GROUP`` columns; None if they do not fit in it exactly."""
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16)
    return np.repeat(half, times, 1) if np.array_equal(half.astype(np.float32), numbers) else None
