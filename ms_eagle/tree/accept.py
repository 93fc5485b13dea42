"""Acceptance: how far the teacher's own choices follow the tree, as pure functions for graph mode.

A node matches when its token is the teacher's choice after its parent. Siblings' tokens are distinct, so
at most one child of a node matches and the chain of matches from the root is one path. With
deterministic children this has the law of sibling-by-sibling rejection sampling with q = 1
(SpecInfer, arXiv 2305.09781, section 4), and argmax choices make it greedy verification.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_eagle.tree.tensorize import Tree


@ops.constexpr
def _arange(count: int) -> Tensor:
    return Tensor(np.arange(count, dtype=np.int32))


@ops.constexpr
def _is_root(batch: int, rows: int) -> Tensor:
    return Tensor(np.tile(np.arange(rows) == 0, (batch, 1)))


def accept(tree: Tree, choices: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Walk the longest chain of matches from the root.

    Args:
        tree: its scores, and which rows are laid, do not matter.
        choices: `[B, N]` int32, `y[r]`: the teacher's token after row `r`.
        active: `[B]` bool; an element that is finished emits nothing.

    Returns:
        accepted `[B]` int32, `a` draft tokens (`accept_L`); path `[B, D+1]` int32, row of each depth up
        to `a`, then 0; emitted `[B, D+1]` int32, the accepted tokens and the teacher's token after the
        path, then 0; count `[B]` int32, `a + 1`, or 0 when not active (then all the rest is 0 too).
    """
    tokens, parents, depths, _, valid, _, ancestors = tree
    batch, levels, rows = ancestors.shape
    follows = tokens == ops.gather_d(choices, 1, parents)
    match = ops.logical_or(ops.logical_and(valid, follows), _is_root(batch, rows))
    match = ops.logical_and(match, active.reshape(batch, 1))
    # A row is reached when it and all its ancestors match: no factor of the product is 0.
    chain = ops.gather_d(match.astype(ms.int32), 1, ancestors.reshape(batch, levels * rows))
    reached = chain.reshape(batch, levels, rows).sum(1) == levels  # [B, N]
    at_depth = ops.logical_and(
        reached.expand_dims(1), depths.expand_dims(1) == _arange(levels).reshape(1, levels, 1)
    )  # [B, D+1, N], at most one row per depth
    path = ops.amax(at_depth.astype(ms.float32) * _arange(rows).astype(ms.float32), 2).astype(ms.int32)
    accepted = ops.amax(reached.astype(ms.float32) * depths.astype(ms.float32), 1).astype(ms.int32)
    count = (accepted + 1) * active.astype(ms.int32)
    # A matching node's token is its parent's choice, so the emitted tokens are the choices along the path.
    spoken = ops.gather_d(choices, 1, path)  # [B, D+1]
    emitted = ops.select(_arange(levels) < count.reshape(batch, 1), spoken, ops.zeros_like(spoken))
    return accepted, path, emitted, count


def path_slots(path: Tensor, count: Tensor, start: Tensor, trash: int) -> tuple[Tensor, Tensor]:
    """Cache slots that a commit moves from and to: `n + path[i]` to `n + i`.

    Sources and destinations overlap: gather all, then scatter. Entries past the path, and all those of
    an element that is not active, go from the trash slot to itself, each time with the same content.

    Args:
        path: `[B, D+1]` int32, as `accept` returns it.
        count: `[B]` int32, entries of the path in use (`a + 1`, or 0).
        start: `[B]` int32, the committed length `n`.
        trash: the cache's last slot, a Python integer.

    Returns:
        sources and destinations, `[B, D+1]` int32 each.
    """
    batch, levels = path.shape
    steps = _arange(levels)
    used = steps < count.reshape(batch, 1)
    unused = ops.full_like(path, trash)
    first = start.reshape(batch, 1)
    return ops.select(used, first + path, unused), ops.select(used, first + steps, unused)
