"""Static key/value caches: allocated once, written by scatter at explicit slots."""

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class KVCache(nn.Cell):
    """K and V of every layer, each ``[B, H_kv, S, d]``, allocated once.

    The last slot ``S - 1`` is the trash slot: padded rows are written there and nothing reads it.

    The Parameters hold the buffers as rows, ``[B * H_kv * S, d]``: MindSpore's CPU backend updates whole
    rows in place (ScatterUpdate), but copies the entire buffer for an update by several indices
    (ScatterNdUpdate): 0.7 ms against 40 ms for 30 layers of 2048 slots.
    """

    def __init__(
        self, layers: int, batch: int, kv_heads: int, slots: int, head_dim: int, dtype: ms.Type
    ) -> None:
        super().__init__()
        self.shape = (batch, kv_heads, slots, head_dim)
        self.keys = _buffers("key", layers, self.shape, dtype)
        self.values = _buffers("value", layers, self.shape, dtype)

    @property
    def trash(self) -> int:
        """The slot that takes padded writes."""
        return self.shape[2] - 1

    def clear(self) -> None:
        """Fill the buffers with zeros (on the host): a NaN would outlive its request, as 0 * NaN is NaN."""
        for buffer in (*self.keys, *self.values):
            buffer.set_data(ops.zeros(buffer.shape, buffer.dtype))

    def write(self, layer: int, key: Tensor, value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows and return the layer's whole K and V, which depend on the write.

        Args:
            layer: which layer, a constant.
            key: ``[B, H_kv, N, d]``; value: the same.
            where: ``[B * H_kv * N]`` int32 from ``row_numbers``.

        Returns:
            K and V, ``[B, H_kv, S, d]``.
        """
        d = self.shape[3]
        keys = ops.scatter_update(self.keys[layer], where, key.reshape(where.shape[0], d))
        values = ops.scatter_update(self.values[layer], where, value.reshape(where.shape[0], d))
        return keys.reshape(self.shape), values.reshape(self.shape)

    def row_numbers(self, slots: Tensor) -> Tensor:
        """Turn slots ``[B, N]`` int32 into row numbers of the buffers, ``[B * H_kv * N]`` int32."""
        batch, kv_heads, length, _ = self.shape
        first = ops.arange(batch * kv_heads).astype(ms.int32).reshape(batch, kv_heads, 1) * length
        return (first + slots.reshape(batch, 1, slots.shape[1])).reshape(batch * kv_heads * slots.shape[1])


def _buffers(name: str, layers: int, shape: tuple[int, ...], dtype: ms.Type) -> ParameterTuple:
    batch, kv_heads, slots, d = shape
    rows = (batch * kv_heads * slots, d)
    return ParameterTuple(
        Parameter(ops.zeros(rows, dtype), name=f"{name}.{layer}", requires_grad=False)
        for layer in range(layers)
    )
