"""The shape of a draft tree and its growth, level by level, as pure functions for graph mode.

Dynamic draft trees follow EAGLE-2 (arXiv 2406.16858, section 4): every level keeps the `k` nodes of
highest cumulative log-probability and gives each of them `k` children; all children ever made form a
pool, of which the tensorizer later keeps the best. Here the root is pool entry 0 and entries follow in
order of depth, so a parent's index is always below its child's and no index is ever negative.

The order of candidates is total: higher score first, then the lower pool index (which is the lower
depth). A child's score never exceeds its parent's, because own log-probabilities are clamped at 0 and
fp32 addition is monotone; hence in this order a parent always precedes its child, ties included.
"""

import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_eagle.errors import UserError
from ms_eagle.tree.topk import top_k, without_nan


@dataclass(frozen=True)
class TreeShape:
    """Static size of a draft tree.

    Args:
        budget: `M`, draft nodes checked per cycle, from 1 to `pool_size`.
        depth: `D`, largest depth of a node, from 1.
        branch: `k`, children kept per level and made per node, from 1.

    A budget below `depth` is allowed: such a tree never reaches its full depth.

    Raises:
        UserError: a value outside its bounds, naming both.
    """

    budget: int
    depth: int
    branch: int

    def __post_init__(self) -> None:
        for name in ("budget", "depth", "branch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserError(f"tree.{name} is {value!r}; expected a whole number, at least 1")
            if value < 1:
                raise UserError(f"tree.{name} is {value}; it must be at least 1")
        if self.budget > self.pool_size:
            raise UserError(
                f"tree.budget is {self.budget}, but depth {self.depth} and branch {self.branch} make only "
                f"{self.pool_size} candidates (k + (D-1)*k*k); lower budget or raise depth or branch"
            )

    @property
    def rows(self) -> int:
        """`N = M + 1`: rows of a tree batch, the root's among them."""
        return self.budget + 1

    @property
    def pool_size(self) -> int:
        """Candidates grown per cycle, without the root: `k + (D-1)*k*k`."""
        return self.branch + (self.depth - 1) * self.branch**2

    def check_vocabulary(self, size: int) -> None:
        """Refuse a draft vocabulary of `size` tokens too small for `branch` distinct children.

        Raises:
            UserError: `branch` exceeds `size`.
        """
        if self.branch > size:
            raise UserError(
                f"tree.branch is {self.branch}, but the draft vocabulary has only {size} tokens; "
                f"lower branch to at most {size}"
            )


# Graph mode passes plain tuples, so these are names for them.
Pool = tuple[Tensor, Tensor, Tensor, Tensor]
"""Candidates so far, the root as entry 0; `P` grows by level, all `[B, P]`: tokens int32 (teacher
vocabulary), scores fp32 (cumulative log-probability, at most 0, never NaN), parents int32 (pool index;
the root's is 0), depths int32."""

Beam = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The `k` nodes to forward next, best first: tokens `[B, k]` int32, scores `[B, k]` fp32, nodes `[B, k]`
int32 (pool indices), parent rows `[B, k]` int32 (row of the last forward each came from: its feature),
lineage `[B, l, k]` int32 (in each of the `l` level blocks up to and with its own, the row of its
ancestor; in its own, itself)."""


@ops.constexpr
def _filled(rows: int, columns: int, value: int) -> Tensor:
    return Tensor(np.full((rows, columns), value, np.int32))


@ops.constexpr
def _counting(rows: int, columns: int, start: int) -> Tensor:
    """`start, start + 1, ...` in each row, `[rows, columns]` int32."""
    return Tensor(np.tile(np.arange(start, start + columns, dtype=np.int32), (rows, 1)))


@ops.constexpr
def _repeated(rows: int, count: int, times: int) -> Tensor:
    """`0, .., 0, 1, .., 1, ...`: which of `count` parents made each child, `[rows, count * times]` int32."""
    return Tensor(np.tile(np.repeat(np.arange(count, dtype=np.int32), times), (rows, 1)))


def top_children(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` most probable tokens after each row, most probable first, ties to the lower id.

    Args:
        logits: `[R, V]` floating point over the draft vocabulary, used as fp32; -inf rules a token out.
        k: a Python integer, `k <= V`.

    Returns:
        draft ids `[R, k]` int32 and log-probabilities `[R, k]` fp32. A row that defines no distribution
        (a NaN or +inf among its logits, or all of them -inf) has NaN for every log-probability, and ids
        that are still in range.
    """
    log_probs = ops.log_softmax(logits.astype(ms.float32), -1)
    values, ids = top_k(log_probs, k)
    # Kernels skip a NaN in the maximum and may clamp it in the exponential, so it must be looked for.
    broken = ops.isnan(log_probs.sum(-1, keepdims=True))  # [R, 1]
    return ids, ops.select(broken, ops.full_like(values, float("nan")), values)


def grow_root(root: Tensor, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
    """Depth 1: the root's children, from the drafter's last extend row.

    Args:
        root: `[B]` int32, the last emitted token.
        tokens: `[B, k]` int32, distinct, in the teacher's vocabulary.
        log_probs: `[B, k]` fp32.

    Returns:
        pool, beam (every child is forwarded next), and `broken` `[B]` bool: a log-probability is NaN.
    """
    batch, k = tokens.shape
    broken = ops.isnan(log_probs.sum(-1))
    scores = ops.clamp(without_nan(log_probs), max=0.0)
    zero = _filled(batch, 1, 0)
    pool = (
        ops.cat([root.reshape(batch, 1), tokens], 1),
        ops.cat([zero.astype(ms.float32), scores], 1),
        _filled(batch, 1 + k, 0),
        ops.cat([zero, _filled(batch, k, 1)], 1),
    )
    rows = _counting(batch, k, 0)
    beam = (tokens, scores, _counting(batch, k, 1), _filled(batch, k, 0), rows.reshape(batch, 1, k))
    return pool, beam, broken


def grow_level(pool: Pool, beam: Beam, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
    """One level more: `k` children of each of the `k` forwarded nodes.

    Args:
        pool: all candidates so far.
        beam: the nodes that were forwarded.
        tokens: `[B, k, k]` int32: children by row of the forward, in the teacher's vocabulary.
        log_probs: `[B, k, k]` fp32, given the parent.

    Returns:
        pool with `k*k` entries more, the next beam (the best `k` of them) and `broken` `[B]` bool.
    """
    pool_tokens, pool_scores, pool_parents, pool_depths = pool
    _, beam_scores, beam_nodes, _, lineage = beam
    batch, k, _ = tokens.shape
    size = pool_scores.shape[1]
    level = lineage.shape[1]
    broken = ops.isnan(log_probs.reshape(batch, k * k).sum(-1))
    own = ops.clamp(without_nan(log_probs), max=0.0)
    scores = (beam_scores.expand_dims(2) + own).reshape(batch, k * k)
    tokens = tokens.reshape(batch, k * k)
    row = _repeated(batch, k, k)  # [B, k*k], row of the parent in the forward
    pool = (
        ops.cat([pool_tokens, tokens], 1),
        ops.cat([pool_scores, scores], 1),
        ops.cat([pool_parents, ops.gather_d(beam_nodes, 1, row)], 1),
        ops.cat([pool_depths, _filled(batch, k * k, level + 1)], 1),
    )
    best, chosen = top_k(scores, k)  # [B, k]
    parent_rows = ops.gather_d(row, 1, chosen)
    inherited = ops.gather_d(lineage, 2, ops.tile(parent_rows.expand_dims(1), (1, level, 1)))
    beam = (
        ops.gather_d(tokens, 1, chosen),
        best,
        chosen + size,
        parent_rows,
        ops.cat([inherited, _counting(batch, k, 0).expand_dims(1)], 1),
    )
    return pool, beam, broken


def log_confidence(confidence: float) -> float:
    """Natural logarithm of the `confidence` threshold, -inf for 0 (keep every node).

    Raises:
        UserError: `confidence` is not a number from 0 to 1.
    """
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise UserError(
            f"tree.confidence is {confidence!r}; expected a probability from 0 to 1 (0: keep all)"
        )
    return math.log(confidence) if confidence > 0 else -math.inf
