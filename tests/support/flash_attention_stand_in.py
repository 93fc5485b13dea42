"""A stand-in for FlashAttentionScore on the CPU, from the operator's documented contract alone.

It takes what the documentation allows, in the one way this project calls it, and refuses the rest. A row
with every key discarded, whose result the documentation leaves open, gives NaN, so that none goes unseen.
"""

import mindspore as ms
from mindspore import nn, ops
from mindspore.ops import constexpr


class FlashAttentionStandIn(nn.Cell):
    """Called like the primitive: settings at construction, tensors and optional ones in its order."""

    def __init__(self, head_num, keep_prob=1.0, scale_value=1.0, input_layout="BSH", sparse_mode=0):
        super().__init__()
        if input_layout != "BNSD" or keep_prob != 1.0:
            raise ValueError(f"layout {input_layout}, keep_prob {keep_prob}: not what the stand-in is for")
        if sparse_mode != 1:
            raise ValueError(f"sparse_mode is {sparse_mode}; only 1 applies a full mask and nothing else")
        self.heads, self.scale = head_num, scale_value

    def construct(self, query, key, value, real_shift, drop_mask, padding_mask, attn_mask):
        _check(
            self.heads,
            query.shape,
            key.shape,
            value.shape,
            attn_mask.shape,
            query.dtype,
            key.dtype,
            value.dtype,
            attn_mask.dtype,
        )
        batch, heads, rows, d = query.shape
        groups, slots = heads // key.shape[1], key.shape[2]
        wide = query.astype(ms.float32).reshape(batch, key.shape[1], groups * rows, d)
        scores = ops.BatchMatMul(transpose_b=True)(wide, key.astype(ms.float32)) * self.scale
        scores = scores.reshape(batch, heads, rows, slots)
        keep = ops.logical_not(attn_mask).astype(ms.float32)
        scores = ops.select(attn_mask.broadcast_to(scores.shape), ops.full_like(scores, -1e30), scores)
        top = ops.amax(scores, 3, True)
        weights = ops.exp(scores - top) * keep
        weights = weights / weights.sum(3, keepdims=True)  # 0 / 0 where a row keeps no key
        weights = weights.reshape(batch, key.shape[1], groups * rows, slots)
        mixed = ops.BatchMatMul()(weights, value.astype(ms.float32)).reshape(batch, heads, rows, d)
        return top, top, top, mixed.astype(query.dtype)


@constexpr
def _check(heads, query, key, value, mask, query_dtype, key_dtype, value_dtype, mask_dtype):
    batch, n1, s1, d = query
    if query_dtype not in (ms.float16, ms.bfloat16) or {key_dtype, value_dtype} != {query_dtype}:
        raise TypeError(f"dtypes {query_dtype}, {key_dtype}, {value_dtype}: one of float16 and bfloat16")
    if n1 != heads or not 1 <= n1 <= 256 or n1 % key[1]:
        raise ValueError(f"{n1} query heads, {key[1]} key heads, head_num {heads}")
    if d % 16 or d > 512:
        raise ValueError(f"head size {d}: a multiple of 16, up to 512")
    if key != value or (key[0], key[3]) != (batch, d) or not 1 <= batch <= 2048:
        raise ValueError(f"query {query}, key {key}, value {value}")
    if mask_dtype not in (ms.bool_, ms.uint8):
        raise TypeError(f"attn_mask has dtype {mask_dtype}: bool or uint8, 1 = discard")
    if mask not in ((batch, n1, s1, key[2]), (batch, 1, s1, key[2]), (s1, key[2])):
        raise ValueError(f"attn_mask has shape {mask}")
    return True
