"""The paged key/value cache of a MindFormers inference model, as the cache of our cycle.

MindFormers keeps K and V of a layer as ``[blocks, block_size, H_kv, d]`` and finds a token's place through a
table of blocks. Its own tables grow with a sequence and are padded with -1. Here every sequence is given all
its blocks at once, so the table is a constant without sentinels and every slot of `kv_cache` has a place: no
negative index exists.
"""

import mindspore as ms
import numpy as np
from mindformers import PreTrainedModel
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_eagle.errors import UserError
from ms_eagle.tree.accept import path_slots


class PagedCache(nn.Cell):
    """K and V of every layer in MindFormers' layout; slots mean what they mean in ``kv_cache.KVCache``.

    Attributes:
        shape: ``(B, H_kv, S, d)``.
        tables: ``[B, blocks]`` int32, the blocks of each sequence in order.
        width: keys that a table holds, ``S`` rounded up to whole blocks.
    """

    def __init__(self, network: PreTrainedModel, batch: int, slots: int) -> None:
        """Allocate caches of the network's sizes.

        Args:
            network: a MindFormers inference model; its own caches are left alone.
            batch: B.
            slots: S, the trash slot included.

        Raises:
            UserError: its ``num_blocks`` are too few.
        """
        super().__init__(auto_prefix=False)
        config = network.get_gpt_model().config
        self.block_size = config.block_size
        each = -(-slots // self.block_size)
        if batch * each > config.num_blocks:
            raise UserError(
                f"num_blocks is {config.num_blocks} of {self.block_size} tokens, but {batch} sequences of "
                f"{slots} slots take {batch * each}: raise model_config.num_blocks or lower seq_length."
            )
        heads = config.num_query_groups or config.num_attention_heads
        d = getattr(config, "kv_channels", None) or config.hidden_size // config.num_attention_heads
        self.shape, self.width = (batch, heads, slots, d), each * self.block_size
        self.tables = Tensor(np.arange(batch * each, dtype=np.int32).reshape(batch, each))
        buffer = (batch * each, self.block_size, heads, d)
        layers = range(config.num_layers)
        self.keys, self.values = (
            ParameterTuple(
                Parameter(ops.zeros(buffer, config.compute_dtype), name=f"{name}.{i}", requires_grad=False)
                for i in layers
            )
            for name in ("paged_key", "paged_value")
        )

    @property
    def trash(self) -> int:
        """The slot that takes padded writes."""
        return self.shape[2] - 1

    def clear(self) -> None:
        """Fill the buffers with zeros (on the host)."""
        for buffer in (*self.keys, *self.values):
            buffer.set_data(ops.zeros(buffer.shape, buffer.dtype))

    def places(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Block and offset of slots ``[B, N]`` int32 in ``[0, S)``, each ``[B, N]`` int32."""
        page = ops.floor_divide(slots, self.block_size)
        return ops.gather_d(self.tables, 1, page), slots - page * self.block_size


class PagedReorder(nn.Cell):
    """``commit.FastReorder`` for a paged cache: rows of the path move, gathered before they are scattered."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.cache = cache

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        """Move rows ``n + path[i]`` to ``n + i`` for ``0 < i < count``; see ``FastReorder``.

        Args:
            path: ``[B, D+1]`` int32.
            count: ``[B]`` int32.
            n: ``[B]`` int32, the committed length.
        """
        levels = path.shape[1]
        sources, targets = path_slots(path, count, n, self.cache.trash)
        come_from = ops.stack(self.cache.places(sources[:, 1:levels]), 2)
        go_to = ops.stack(self.cache.places(targets[:, 1:levels]), 2)
        for buffer in (*self.cache.keys, *self.cache.values):
            ops.scatter_nd_update(buffer, go_to, ops.gather_nd(buffer, come_from))


def hidden_keys(seen: Tensor, slots: Tensor, trash: int, width: int, dtype: ms.Type) -> Tensor:
    """The mask of ``steps.StockSteps`` as PagedAttention takes it: 0 keeps, -10000 discards.

    Padded rows, which see the trash slot only, are shown key 0 instead: keys behind the last row in use are
    not read at all.

    Args:
        seen: ``[B, 1, N, S]`` bool, True = discard.
        slots: ``[B, N]`` int32, where the rows' K and V go.
        trash: the trash slot.
        width: keys of a sequence in whole blocks, at least S.
        dtype: of the model.

    Returns:
        ``[B * N, width]``.
    """
    batch, rows = slots.shape
    size = seen.shape[3]
    padded = (slots == trash).reshape(batch, rows, 1)
    first = (ops.arange(size) == 0).reshape(1, 1, size)
    shown = ops.logical_and(padded, first)
    discard = ops.logical_and(seen.reshape(batch, rows, size), ops.logical_not(shown))
    discard = discard.reshape(batch * rows, size).astype(ms.float32)
    if width > size:
        discard = ops.cat((discard, ops.ones((batch * rows, width - size), ms.float32)), 1)
    return (discard * -10000.0).astype(dtype)
