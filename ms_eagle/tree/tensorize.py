"""From the pool of candidates to the rows of a tree batch, as pure functions for graph mode."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_eagle.tree.growth import Pool

# A plain tuple: graph mode would make a named one outside the graph, in Python.
Tree = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A tree batch, N rows, the root's first: tokens int32, parents int32 (rows), depths int32, laid bool (rows
that hold a candidate; the others are padding), valid bool (rows that take part in this cycle), scores float32
(cumulative log-probabilities), each `[B, N]`; ancestors `[B, D+1, N]` int32 (`ancestor_table`)."""


@ops.constexpr
def _descending(rows: int, count: int) -> Tensor:
    """`count, count - 1, ..., 1` in each row, `[rows, count]` fp32."""
    return Tensor(np.tile(np.arange(count, 0, -1).astype(np.float32), (rows, 1)))


@ops.constexpr
def _row_numbers(batch: int, rows: int) -> Tensor:
    return Tensor(np.tile(np.arange(rows, dtype=np.int32), (batch, 1)))


def best_candidates(scores: Tensor, count: int) -> Tensor:
    """Mark the `count` best pool entries: higher score first, then lower index.

    In that order a parent precedes its child (see `growth`), so every prefix of it, and hence the
    choice, is closed under parent whatever ties there are. Only the *value* of the last chosen score is
    taken from a top-k; which of the equal ones belong is settled by counting.

    Args:
        scores: `[B, P]` fp32 without NaN, the root first.
        count: rows wanted, the root among them; a Python integer, at most `P`.

    Returns:
        `[B, P]` bool with exactly `count` set per batch element.
    """
    least = ops.topk(scores, count)[0][:, count - 1 :]  # [B, 1]
    above = scores > least
    tied = scores == least
    room = count - above.astype(ms.int32).sum(-1, keepdims=True)
    first_tied = ops.logical_and(tied, ops.cumsum(tied.astype(ms.int32), -1) <= room)
    return ops.logical_or(above, first_tied)


def ancestor_table(parents: Tensor, depth: int) -> Tensor:
    """`A[0] = arange(N)`, `A[l+1] = parents[A[l]]`: the `l`-th ancestor of each row, the root's being itself.

    Args:
        parents: `[B, N]` int32 in `[0, N)`.
        depth: `D`, a Python integer.

    Returns:
        `[B, D+1, N]` int32.
    """
    batch, rows = parents.shape
    level = _row_numbers(batch, rows)
    levels = [level]
    for _ in range(depth):
        level = ops.gather_d(parents, 1, level)
        levels.append(level)
    return ops.stack(levels, 1)


def tensorize(
    pool: Pool, budget: int, depth: int, log_confidence: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Lay the best `budget` candidates out as the rows of one tree batch.

    Row 0 is the root; rows follow in pool order, that is by depth, then by the rank of the parent and
    of the child, so a parent's row is above its children's. Candidates whose cumulative log-probability
    lies below `log_confidence` are left out; the rule is closed under parent because scores fall along
    every path. Rows left over are padding, at the end: token 0, parent 0, depth 0, score 0, not valid.

    Args:
        pool: `(tokens, scores, parents, depths)`, each `[B, P]`, `P >= budget + 1`.
        budget: `M`, a Python integer; `N = M + 1`.
        depth: `D`, a Python integer.
        log_confidence: fp32 scalar tensor or `[B, 1]`, at most 0; -inf keeps all. A tensor, so that
            another threshold compiles nothing.

    Returns:
        tokens `[B, N]` int32, parents `[B, N]` int32 (rows), depths `[B, N]` int32, valid `[B, N]` bool,
        ancestors `[B, D+1, N]` int32, scores `[B, N]` fp32.
    """
    pool_tokens, pool_scores, pool_parents, pool_depths = pool
    batch, size = pool_scores.shape
    rows = budget + 1
    kept = ops.logical_and(best_candidates(pool_scores, rows), pool_scores >= log_confidence)  # [B, P]
    # Distinct keys for the kept ones, falling with the index; the others' order does not matter.
    keys = ops.select(kept, _descending(batch, size), ops.zeros_like(pool_scores))
    found, nodes = ops.topk(keys, rows)
    valid = found > 0.5
    nodes = nodes.astype(ms.int32)
    row_of = ops.clamp(ops.cumsum(kept.astype(ms.int32), -1) - 1, min=0)  # [B, P], right where kept
    none = ops.zeros_like(nodes)
    tokens = ops.select(valid, ops.gather_d(pool_tokens, 1, nodes), none)
    parents = ops.gather_d(row_of, 1, ops.gather_d(pool_parents, 1, nodes))
    parents = ops.select(valid, parents, none)
    depths = ops.select(valid, ops.gather_d(pool_depths, 1, nodes), none)
    scores = ops.select(valid, ops.gather_d(pool_scores, 1, nodes), ops.zeros_like(found))
    return tokens, parents, depths, valid, ancestor_table(parents, depth), scores
