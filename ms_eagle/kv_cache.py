"""Static key/value caches: allocated once, written by scatter at explicit slots."""

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class KVCache(nn.Cell):
    """K and V of every layer, each a Parameter ``[B, H_kv, S, d]`` (DESIGN.md, "Shapes").

    The last slot ``S - 1`` is the trash slot: padded rows are written there and nothing reads it.
    """

    def __init__(
        self, layers: int, batch: int, kv_heads: int, slots: int, head_dim: int, dtype: ms.Type
    ) -> None:
        super().__init__()
        shape = (batch, kv_heads, slots, head_dim)
        self.shape = shape
        self.keys = _buffers("key", layers, shape, dtype)
        self.values = _buffers("value", layers, shape, dtype)

    @property
    def trash(self) -> int:
        """The slot that takes padded writes."""
        return self.shape[2] - 1

    def write(self, layer: int, key: Tensor, value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows and return the layer's whole K and V, which depend on the write.

        Args:
            layer: which layer, a constant.
            key: ``[B, H_kv, N, d]``; value: the same.
            where: ``[B, H_kv, N, 3]`` int32 from ``cell_indices``.
        """
        keys = ops.scatter_nd_update(self.keys[layer], where, key)
        values = ops.scatter_nd_update(self.values[layer], where, value)
        return keys, values


def cell_indices(slots: Tensor, kv_heads: int) -> Tensor:
    """Turn slots ``[B, N]`` int32 into scatter indices ``[B, H_kv, N, 3]`` int32 (batch, head, slot)."""
    batch, rows = slots.shape
    shape = (batch, kv_heads, rows)
    over_batch = ops.arange(batch).astype(ms.int32).reshape(batch, 1, 1)
    over_heads = ops.arange(kv_heads).astype(ms.int32).reshape(1, kv_heads, 1)
    return ops.stack(
        (
            ops.broadcast_to(over_batch, shape),
            ops.broadcast_to(over_heads, shape),
            ops.broadcast_to(slots.reshape(batch, 1, rows), shape),
        ),
        3,
    )


def _buffers(name: str, layers: int, shape: tuple[int, ...], dtype: ms.Type) -> ParameterTuple:
    return ParameterTuple(
        Parameter(ops.zeros(shape, dtype), name=f"{name}.{layer}", requires_grad=False)
        for layer in range(layers)
    )
