"""Attention from stock MindSpore operators: any device, the debugging path and the fallback."""

import math

import mindspore as ms
from mindspore import nn, ops

from ms_eagle.kernels.contract import check_call

# Far below any score, yet finite: a row with every key discarded stays finite instead of becoming NaN.
_DISCARDED = -1e30


class EagerAttention(nn.Cell):
    """Softmax attention in float32 over grouped KV heads; the contract is in ``contract.py``.

    The query heads of a group are laid beside their rows, so that keys and values are read as they
    are and never repeated.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()

    def construct(self, query: ms.Tensor, key: ms.Tensor, value: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
        """Attend; shapes in ``contract.py``."""
        check_call(query.shape, key.shape, value.shape, mask.shape, mask.dtype)
        batch, heads, rows, d = query.shape
        kv_heads, slots = key.shape[1], key.shape[2]
        grouped = query.reshape(batch, kv_heads, heads // kv_heads * rows, d)
        scores = self.scores(grouped, key).astype(ms.float32) * self.scale
        scores = scores.reshape(batch, heads, rows, slots)
        scores = ops.masked_fill(scores, mask, _DISCARDED)
        weights = ops.softmax(scores, axis=3).astype(query.dtype)
        weights = weights.reshape(batch, kv_heads, heads // kv_heads * rows, slots)
        return self.mix(weights, value).reshape(batch, heads, rows, d)
