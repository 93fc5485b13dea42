"""Attention by Ascend's FlashAttentionScore, held to its documented limits."""

import math

import mindspore as ms
from mindspore import nn
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import FlashAttentionScore

from ms_eagle.errors import UserError
from ms_eagle.kernels.contract import ContractError, check_call

# Limits in the operator's documentation (mindspore 2.9, FlashAttentionScore).
_MAX_BATCH, _MAX_HEADS, _MAX_HEAD_DIM, _MAX_LENGTH = 2048, 256, 512, 512 * 1024
_FULL_MASK = 1  # sparse_mode 0 would also cut the band beyond next_tokens out of a tree


class FusedAttention(nn.Cell):
    """FlashAttentionScore in layout BNSD with a full mask; the contract is in ``contract.py``.

    Raises:
        UserError: at construction, a head size or a head count that the operator does not take.
        ContractError: at compilation, a dtype, shape or mask that it does not take. MindSpore itself
            checks none of the mask's properties then.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        if head_dim % 16 or head_dim > _MAX_HEAD_DIM:
            raise UserError(
                f"execution.kernels fused: the head size is {head_dim}; FlashAttentionScore takes multiples "
                f"of 16 up to {_MAX_HEAD_DIM}: use eager kernels for this model."
            )
        if num_heads > _MAX_HEADS:
            raise UserError(
                f"execution.kernels fused: the model has {num_heads} heads; FlashAttentionScore takes up to "
                f"{_MAX_HEADS}: use eager kernels for this model."
            )
        self.num_heads = num_heads
        self.attend = FlashAttentionScore(
            head_num=num_heads,
            scale_value=1.0 / math.sqrt(head_dim),
            input_layout="BNSD",
            sparse_mode=_FULL_MASK,
        )

    def construct(self, query: ms.Tensor, key: ms.Tensor, value: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
        """Attend; shapes in ``contract.py``; query, key and value in float16 or bfloat16."""
        check_call(query.shape, key.shape, value.shape, mask.shape, mask.dtype)
        check_limits_at_compile(query.shape, key.shape, query.dtype, key.dtype, value.dtype, self.num_heads)
        _, _, _, attended = self.attend(query, key, value, None, None, None, mask)
        return attended


def check_limits(
    query: tuple[int, ...],
    key: tuple[int, ...],
    query_dtype: ms.Type,
    key_dtype: ms.Type,
    value_dtype: ms.Type,
    num_heads: int,
) -> bool:
    """Check one call against the operator's documented limits.

    Raises:
        ContractError: naming the limit that is broken.
    """
    if query_dtype not in (ms.float16, ms.bfloat16):
        raise ContractError(f"query has dtype {query_dtype}; FlashAttentionScore takes float16 or bfloat16")
    if key_dtype != query_dtype or value_dtype != query_dtype:
        raise ContractError(f"key and value have dtypes {key_dtype}, {value_dtype}; expected {query_dtype}")
    if query[1] != num_heads:
        raise ContractError(f"query has {query[1]} heads; the operator was made for {num_heads}")
    if query[0] > _MAX_BATCH:
        raise ContractError(f"the batch is {query[0]}; FlashAttentionScore takes up to {_MAX_BATCH}")
    if max(query[2], key[2]) > _MAX_LENGTH:
        raise ContractError(f"rows or slots exceed FlashAttentionScore's {_MAX_LENGTH}")
    return True


check_limits_at_compile = constexpr(check_limits)
