"""Committing the accepted path: its rows move behind the committed ones, and nothing else moves.

A branch of the tree is a view past the committed length ``n``: rejecting it is forgetting it. Several Cells
carry out a path; those that move rows gather before they scatter, since source and destination slots overlap.
"""

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_eagle.models.kv_cache import KVCache
from ms_eagle.tree.accept import path_slots


class FastReorder(nn.Cell):
    """Moves the rows of the path that are below the root, ``D`` a layer; the root is always in place.

    Rows of the path that are in place already, and unused entries, are written with what they hold.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = cache

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        """Move rows ``n + path[i]`` to ``n + i`` for ``0 < i < count``.

        Args:
            path: ``[B, D+1]`` int32, rows of the accepted path by depth.
            count: ``[B]`` int32, how many entries count; 0 moves nothing.
            n: ``[B]`` int32, the committed length.
        """
        levels = path.shape[1]
        sources, targets = path_slots(path, count, n, self.cache.trash)
        come_from = self.cache.row_numbers(sources[:, 1:levels])
        go_to = self.cache.row_numbers(targets[:, 1:levels])
        for buffer in (*self.cache.keys, *self.cache.values):
            ops.scatter_update(buffer, go_to, ops.gather(buffer, come_from, 0))


class FullReorder(nn.Cell):
    """Rewrites every slot of the caches in its new order: the general form, and the fallback."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = cache

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        """As ``FastReorder.construct``."""
        batch, _ = path.shape
        slots = self.cache.shape[2]
        sources, targets = path_slots(path, count, n, self.cache.trash)
        order = ops.broadcast_to(ops.arange(slots).astype(ms.int32).reshape(1, slots), (batch, slots))
        order = ops.tensor_scatter_elements(order, targets, sources, 1)
        rows = self.cache.row_numbers(order)
        for buffer in (*self.cache.keys, *self.cache.values):
            ops.assign(buffer, ops.gather(buffer, rows, 0))


class KeepOrder(nn.Cell):
    """Moves nothing: for chains, whose accepted rows lie in order already."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = cache

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        """As ``FastReorder.construct``, for a path of the rows ``0, 1, 2, ...``."""


class CloneReorder(nn.Cell):
    """Copies both caches as a whole, then lets ``move``, another Cell of this kind, move rows.

    What a branch costs that is a copy of the cache instead of a view of it: a baseline for measurements.
    """

    def __init__(self, cache: KVCache, move: nn.Cell) -> None:
        super().__init__()
        self.cache, self.move = cache, move
        buffers = (*cache.keys, *cache.values)
        self.copies = ParameterTuple(
            Parameter(ops.zeros(buffer.shape, buffer.dtype), name=f"copy.{i}", requires_grad=False)
            for i, buffer in enumerate(buffers)
        )

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        """As ``FastReorder.construct``."""
        buffers = (*self.cache.keys, *self.cache.values)
        for i in range(len(buffers)):
            ops.assign(self.copies[i], buffers[i])
        self.move(path, count, n)
