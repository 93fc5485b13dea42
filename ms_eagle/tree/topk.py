"""The k largest entries of a row, with ties broken towards the lower index on every device.

Framework kernels leave the order of equal values open: on MindSpore's CPU backend `ops.topk` returns
an arbitrary choice among them. A draft tree must not depend on that, so the choice is made here from
two facts every kernel keeps: the *values* of a top-k are the same however ties fall, and a top-k over
distinct keys has one answer.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

BLOCK_FROM = 512
"""Rows longer than this are searched block by block (see `top_k`)."""

_EXACT = 2**24  # integers below this are exact in fp32


@ops.constexpr
def _block_size(width: int, k: int) -> int:
    """Block length that makes both searches short: `width / block` blocks, then `k` blocks' entries."""
    if width <= BLOCK_FROM:
        return width
    sizes = [size for size in range(8, width // k + 1) if width % size == 0]
    best = min(sizes, key=lambda size: width // size + k * size, default=width)
    even = round((width / k) ** 0.5)  # the best length were every length a divisor
    if width // best + k * best <= 2 * (width // even + k * even):
        return best
    return even


@ops.constexpr
def _countdown(rows: int, count: int, top: int) -> Tensor:
    """`top, top - 1, ...` in each row, `[rows, count]` fp32; exact, or refused."""
    if top >= _EXACT:
        raise ValueError(f"top_k: {count} entries make keys up to {top}, beyond fp32's exact {_EXACT}")
    return Tensor(np.tile((top - np.arange(count)).astype(np.float32), (rows, 1)))


@ops.constexpr
def _arange(count: int) -> Tensor:
    return Tensor(np.arange(count, dtype=np.int32))


@ops.constexpr
def _row_starts(rows: int, stride: int) -> Tensor:
    return Tensor((np.arange(rows, dtype=np.int32) * stride)[:, None])


def without_nan(x: Tensor) -> Tensor:
    """`x` with every NaN replaced by -inf, so that comparisons order all of it."""
    return ops.select(ops.isnan(x), ops.full_like(x, float("-inf")), x)


def _members(x: Tensor, k: int) -> Tensor:
    """Indices `[R, k]` of the top k of short NaN-free rows: a fixed choice, in no useful order.

    Entries above the k-th value all belong; of those equal to it the first ones do. The keys say so:
    distinct, larger for the former, falling with the index.
    """
    rows, width = x.shape
    least = ops.topk(x, k)[0][:, k - 1 :]  # [R, 1]
    tied = ops.select(x == least, _countdown(rows, width, width), ops.zeros_like(x))
    keys = ops.select(x > least, _countdown(rows, width, 2 * width), tied)
    return ops.topk(keys, k)[1].astype(ms.int32)


def _by_value(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sort `[R, k]` pairs by descending value; equal values keep their order."""
    rows, k = values.shape
    above = (values.expand_dims(1) > values.expand_dims(2)).astype(ms.float32).sum(-1)  # [R, k]
    order = ops.topk(_countdown(rows, k, k * (k + 1)) - float(k) * above, k)[1].astype(ms.int32)
    return ops.gather_d(values, 1, order), ops.gather_d(indices, 1, order)


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest entries of each row, largest first, equal values by ascending index.

    Args:
        x: `[R, V]` fp32, -inf allowed. A row that holds a NaN gets some `k` distinct indices in range.
        k: how many, `1 <= k <= V`; a Python integer.

    Returns:
        values `[R, k]` fp32 and indices `[R, k]` int32.

    A long row is cut into blocks. The k best entries lie within the k blocks whose maxima are best
    (ties to the lower block): any entry outside them is beaten by one entry of each of those blocks.
    """
    rows, width = x.shape
    block = _block_size(width, k)
    if block == width:
        x = without_nan(x)
        indices = _members(x, k)
        return _by_value(ops.gather_d(x, 1, indices), indices)
    count = (width + block - 1) // block
    if count * block > width:
        x = ops.cat([x, ops.full((rows, count * block - width), float("-inf"), dtype=x.dtype)], 1)
    maxima = without_nan(ops.max(x.reshape(rows, count, block), -1)[0])  # [R, count]
    # Ascending block order makes the position of a candidate follow its index.
    chosen = -ops.topk(-_members(maxima, k).astype(ms.float32), k)[0]
    chosen = chosen.astype(ms.int32)  # [R, k]
    flat = (chosen + _row_starts(rows, count)).reshape(-1)
    candidates = without_nan(ops.gather(x.reshape(rows * count, block), flat, 0).reshape(rows, k * block))
    indices = (chosen.expand_dims(2) * block + _arange(block)).reshape(rows, k * block)
    members = _members(candidates, k)
    return _by_value(ops.gather_d(candidates, 1, members), ops.gather_d(indices, 1, members))
