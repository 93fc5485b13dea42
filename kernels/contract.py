"""The attention contract every kernel keeps, and the checks that MindSpore does not make.

A kernel is a Cell called as ``kernel(query, key, value, mask)``:

======  ==========================  =============================================
query   ``[B, H, N, d]``            rotated queries of the N rows
key     ``[B, H_kv, S, d]``         the whole static cache, the rows' own keys included
value   ``[B, H_kv, S, d]``
mask    ``[B, 1, N, S]`` bool       True = discard (FlashAttentionScore's polarity)
result  ``[B, H, N, d]``            in the query's dtype
======  ==========================  =============================================
"""

import mindspore as ms
from mindspore.ops import constexpr

NAMES = ("fused", "native", "eager")


class ContractError(ValueError):
    """An attention call outside the documented limits of the kernel: a fault of this program."""


def check_shapes(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], mask: tuple[int, ...]
) -> None:
    """Check the shapes of one attention call against the contract.

    Raises:
        ContractError: naming the first argument that breaks it.
    """
    for name, shape in (("query", query), ("key", key), ("value", value), ("mask", mask)):
        if len(shape) != 4 or min(shape) < 1:
            raise ContractError(f"{name} has shape {shape}; expected four dimensions, none of them empty")
    batch, heads, rows, d = query
    if key != value:
        raise ContractError(f"key has shape {key} and value {value}; expected the same")
    if key[0] != batch or key[3] != d or heads % key[1]:
        raise ContractError(f"key has shape {key}; expected [{batch}, a divisor of {heads}, S, {d}]")
    if mask != (batch, 1, rows, key[2]):
        raise ContractError(f"mask has shape {mask}; expected {(batch, 1, rows, key[2])}")


@constexpr
def check_call(
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    mask: tuple[int, ...],
    dtype: ms.Type,
) -> bool:
    """Run the shape and mask checks while the graph is compiled, where both are constants."""
    check_shapes(query, key, value, mask)
    check_mask_dtype(dtype)
    return True


def check_mask_dtype(dtype: ms.Type) -> None:
    """Only bool is taken: an additive 0/-inf mask would be read upside down without an error.

    Raises:
        ContractError: for any other dtype.
    """
    if dtype != ms.bool_:
        raise ContractError(f"mask has dtype {dtype}; expected bool with True = discard")
