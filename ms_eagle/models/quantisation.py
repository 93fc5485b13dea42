"""Weights in the format that is asked for: left as they are stored, widened, or turned into codes.

An int8 entry is off by at most half of its scale, which is the group's largest magnitude over 127; an int4
entry by at most half of its scale, a fifteenth of the group's range, and the rounding of scale and minimum to
half precision.
"""

from typing import Literal

import numpy as np

from ms_eagle.kernels.formats import GROUP
from ms_eagle.models.weight import Weight

Asked = Literal["stored", "compact", "float32", "int8", "int4"]
"""``stored`` leaves codes and floats as they are; ``compact`` turns floats into int8 as well."""

_LARGEST = float(np.finfo(np.float16).max)


def stored_as(weight: Weight, asked: Asked) -> Weight:
    """A matrix in a format; vectors, and matrices whose rows are no whole number of groups, stay floats.

    Args:
        weight: ``[out, in]``, or of another rank.
        asked: int8 and int4 keep codes that have that format already exactly as they are.
    """
    matrix = len(weight.shape) == 2 and weight.shape[1] % GROUP == 0
    if asked == "stored" or asked == weight.format:
        return weight
    if asked == "float32" or not matrix:
        return weight if not weight.quantised else Weight.of(weight.dense())
    if asked == "compact":
        return weight if weight.quantised else int8(weight)
    return int8(weight) if asked == "int8" else int4(weight)


def int8(weight: Weight) -> Weight:
    """Codes -127..127 with a scale for each row and group of ``GROUP`` columns.

    Raises:
        ValueError: a value whose scale is beyond half precision, or that is not finite.
    """
    groups = _groups(weight)
    scales = _rounded_up(np.abs(groups).max(2) / 127)
    codes = np.rint(
        np.divide(groups, scales[:, :, None], where=scales[:, :, None] > 0, out=np.zeros_like(groups))
    )
    return Weight("int8", codes.astype(np.int8).reshape(weight.shape), scales.astype(np.float16), GROUP)


def int4(weight: Weight) -> Weight:
    """Codes 0..15 with a scale and a minimum for each row and group of ``GROUP`` columns.

    Raises:
        ValueError: as for ``int8``.
    """
    groups = _groups(weight)
    minima = groups.min(2).astype(np.float16)
    above = groups - minima.astype(np.float32)[:, :, None]
    scales = _rounded_up(np.maximum(above.max(2), 0) / 15)
    codes = np.rint(
        np.divide(above, scales[:, :, None], where=scales[:, :, None] > 0, out=np.zeros_like(above))
    )
    pairs = codes.clip(0, 15).astype(np.uint8).reshape(weight.shape[0], weight.shape[1] // 2, 2)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return Weight("int4", packed, scales.astype(np.float16), GROUP, minima)


def _groups(weight: Weight) -> np.ndarray:
    """Values ``[out, groups, GROUP]`` float32."""
    values = weight.dense().astype(np.float32, copy=False)
    rows, columns = weight.shape
    groups = values.reshape(rows, columns // GROUP, GROUP)
    largest = float(np.abs(groups).max(initial=0.0))
    if not largest <= _LARGEST:
        raise ValueError(f"a weight of magnitude {largest}; codes hold magnitudes up to {_LARGEST:.0f}")
    return groups


def _rounded_up(scales: np.ndarray) -> np.ndarray:
    """float32 that half precision holds, not below ``scales``: else the largest code would be cut off."""
    half = scales.astype(np.float16)
    low = half.astype(np.float32) < scales
    return np.where(low, np.nextafter(half, np.float16(np.inf)), half).astype(np.float32)
