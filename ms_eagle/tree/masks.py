"""Attention masks and cache slots of tree, chunk and draft batches, as pure functions for graph mode.

Every mask is bool with True = discard, the polarity of FlashAttentionScore, and leaves each row at
least one key: a padded row sees the one slot `n`, for a row with no key at all gives NaN in fused kernels.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

Rows = tuple[Tensor, Tensor, Tensor]
"""Positions and slots of the rows of a forward, ``[B, N]`` int32 each, and what each row sees: the mask
``[B, 1, N, S]`` bool, or another form that the layers of a backend take."""


@ops.constexpr
def _arange(count: int) -> Tensor:
    return Tensor(np.arange(count, dtype=np.int32))


def row_slots(start: Tensor, valid: Tensor, trash: int) -> Tensor:
    """Cache slots that the rows of a batch write to: `n + r`, or the trash slot for padding.

    Args:
        start: `[B]` int32, the committed length `n`.
        valid: `[B, N]` bool; all False for an element that takes no part.
        trash: the cache's last slot, a Python integer.

    Returns:
        `[B, N]` int32.
    """
    slots = start.reshape(-1, 1) + _arange(valid.shape[1])
    return ops.select(valid, slots, ops.full_like(slots, trash))


def positions(start: Tensor, depths: Tensor) -> Tensor:
    """Absolute positions `n + depth` of tree rows, `[B, N]` int32, from `[B]` and `[B, N]` int32."""
    return start.reshape(-1, 1) + depths


def ancestor_matrix(ancestors: Tensor) -> Tensor:
    """Which rows are ancestors-or-self of which: `[B, N, N]` bool, `[b, r, c]` = `c` lies on `r`'s path.

    Args:
        ancestors: `[B, D+1, N]` int32, see `ms_eagle.tree.tensorize.ancestor_table`.
    """
    batch, levels, rows = ancestors.shape
    here = ancestors.reshape(batch, levels, rows, 1) == _arange(rows)  # [B, D+1, N, N]
    return here.astype(ms.float32).sum(1) > 0.5


def tree_mask(start: Tensor, ancestors: Tensor, valid: Tensor, slots: int) -> Tensor:
    """Mask of a tree batch: row `r` sees slots `0..n-1` and `n +` its ancestors-or-self, nothing else.

    Args:
        start: `[B]` int32, the committed length `n`, with `n + N <= slots`.
        ancestors: `[B, D+1, N]` int32.
        valid: `[B, N]` bool; a padded row sees slot `n` alone.
        slots: `S`, the cache's length; a Python integer.

    Returns:
        `[B, 1, N, S]` bool, True = discard.
    """
    batch, _, rows = ancestors.shape
    padded = ops.logical_not(valid).expand_dims(2)  # [B, N, 1]
    others = ops.logical_not(ancestor_matrix(ancestors))  # [B, N, N]
    alone = ops.broadcast_to(_arange(rows).reshape(1, 1, rows) != 0, (batch, rows, rows))
    block = ops.logical_or(ops.logical_and(padded, alone), ops.logical_and(valid.expand_dims(2), others))
    # Columns that a slot can stand for: committed, one of the block's rows, past the block.
    table = ops.cat([padded, block, ops.ones_like(padded)], 2)  # [B, N, N+2]
    column = ops.clamp(_arange(slots) - start.reshape(batch, 1), min=-1, max=rows) + 1  # [B, S]
    return ops.gather(table, column, 2, 1).expand_dims(1)


def causal_mask(start: Tensor, count: Tensor, rows: int, slots: int) -> Tensor:
    """Mask of a chunk of consecutive tokens: row `i` sees slots `0..n+i`.

    Args:
        start: `[B]` int32, slot and position `n` of the chunk's first token.
        count: `[B]` int32, real rows of the chunk, `0..rows`; a row from `count` on sees slot `n` alone.
        rows: `T`, a Python integer.
        slots: `S`, the cache's length; a Python integer.

    Returns:
        `[B, 1, T, S]` bool, True = discard.
    """
    batch = start.shape[0]
    row = _arange(rows)
    valid = row < count.reshape(batch, 1)  # [B, T]
    first = start.reshape(batch, 1)
    last_seen = ops.select(valid, first + row, ops.broadcast_to(first, (batch, rows))).expand_dims(2)
    first_seen = ops.select(valid, ops.zeros((batch, rows), ms.int32), ops.broadcast_to(first, (batch, rows)))
    slot = _arange(slots).reshape(1, 1, slots)
    return ops.logical_or(slot > last_seen, slot < first_seen.expand_dims(2)).expand_dims(1)


def chunk_rows(start: Tensor, count: Tensor, rows: int, slots: int) -> Rows:
    """Where a chunk of consecutive tokens goes and what its rows see.

    Padded rows stand at position `start`, which the rotary tables always cover, and go to the trash slot.

    Args:
        start: `[B]` int32, slot and position of the chunk's first token.
        count: `[B]` int32, real rows of the chunk, `0..rows`.
        rows: `T`, a Python integer.
        slots: `S`, the cache's length; a Python integer.

    Returns:
        positions `[B, T]` int32, slots `[B, T]` int32, mask `[B, 1, T, S]` (`causal_mask`).
    """
    offset = _arange(rows).reshape(1, rows)
    valid = offset < count.reshape(-1, 1)
    places = positions(start, ops.select(valid, offset, ops.zeros_like(offset)))
    return places, row_slots(start, valid, slots - 1), causal_mask(start, count, rows, slots)


def level_slots(start: Tensor, level: int, branch: int) -> Tensor:
    """Drafter cache slots of a level block: `n + level * k + j`, `[B, k]` int32.

    Args:
        start: `[B]` int32, the committed length `n`.
        level: 0 for the forward of the root's children; a Python integer.
        branch: `k`, a Python integer.
    """
    return start.reshape(-1, 1) + level * branch + _arange(branch)


def level_mask(start: Tensor, lineage: Tensor, slots: int) -> Tensor:
    """Mask of a drafter level: committed slots `0..n-1`, the row's ancestors in earlier blocks, itself.

    Args:
        start: `[B]` int32, the committed length `n`, where the first block begins.
        lineage: `[B, l, k]` int32 with `l` the blocks so far, this level's the last: the row of the
            ancestor-or-self in each block (see `ms_eagle.tree.growth.Beam`).
        slots: `S_d`, the drafter cache's length; a Python integer.

    Returns:
        `[B, 1, k, S_d]` bool, True = discard.
    """
    batch, levels, branch = lineage.shape
    width = levels * branch
    others = lineage.swapaxes(1, 2).expand_dims(3) != _arange(branch)  # [B, k, l, k]
    seen = ops.zeros((batch, branch, 1), ms.bool_)
    # Columns that a slot can stand for: committed, one of the blocks' rows, past the blocks.
    table = ops.cat([seen, others.reshape(batch, branch, width), ops.ones_like(seen)], 2)  # [B, k, l*k+2]
    column = ops.clamp(_arange(slots) - start.reshape(batch, 1), min=-1, max=width) + 1  # [B, S_d]
    return ops.gather(table, column, 2, 1).expand_dims(1)
