"""Drafting: from the drafter's state to a pool of candidate tokens, and back to a state after acceptance.

A proposer is a Cell that the cycle calls twice: ``propose`` grows the pool of a tree, ``extend`` takes the
accepted tokens with their true taps into the drafter's cache. Its state is one tensor, passed in and out.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.drafter import Drafter
from ms_eagle.masks import chunk_rows, level_mask, level_slots
from ms_eagle.tree import Beam, Pool, TreeShape, grow_level, grow_root, top_children


class Eagle3Proposer(nn.Cell):
    """Grows a dynamic tree with an EAGLE-3 head: one forward of ``k`` rows a level.

    The state is the hidden state of the drafter's last row, ``[B, E]``: what follows the committed tokens.
    """

    def __init__(self, drafter: Drafter, shape: TreeShape) -> None:
        super().__init__()
        self.drafter = drafter
        self.branch, self.depth = shape.branch, shape.depth
        self.slots = drafter.cache.shape[2]

    def propose(self, root: Tensor, n: Tensor, active: Tensor, state: Tensor) -> tuple[Pool, Tensor]:
        """Grow the pool of candidates.

        Args:
            root: ``[B]`` int32; n: ``[B]`` int32; active: ``[B]`` bool, see ``cycle``.
            state: ``[B, E]``.

        Returns:
            the pool, ``1 + k + (D-1) k^2`` entries (``tree.Pool``), and ``[B]`` bool: the drafter's logits
            are NaN somewhere.
        """
        pool, beam, hidden, broken = self.sprout(root, n, state)
        for level in range(self.depth - 1):
            pool, beam, hidden, bad = self.grow(pool, beam, hidden, n, active, level)
            broken = ops.logical_or(broken, bad)
        return pool, broken

    def sprout(self, root: Tensor, n: Tensor, state: Tensor) -> tuple[Pool, Beam, Tensor, Tensor]:
        """The root's children, from the state alone.

        Returns:
            pool, beam, the hidden states ``[B, 1, E]`` they come from, and ``[B]`` bool: NaN somewhere.
        """
        batch, k = root.shape[0], self.branch
        hidden = state.reshape(batch, 1, self.drafter.hidden_size)
        tokens, log_probs = self.children(hidden, n, 1)
        pool, beam, broken = grow_root(root, tokens.reshape(batch, k), log_probs.reshape(batch, k))
        return pool, beam, hidden, broken

    def grow(
        self, pool: Pool, beam: Beam, hidden: Tensor, n: Tensor, active: Tensor, level: int
    ) -> tuple[Pool, Beam, Tensor, Tensor]:
        """One level more: forward the beam's ``k`` nodes and give each of them ``k`` children.

        Args:
            pool, beam, hidden: of the level before; hidden ``[B, R, E]``.
            n, active: as for ``propose``.
            level: 0 for the forward of the root's children, a constant.

        Returns:
            pool, beam, hidden states ``[B, k, E]``, and ``[B]`` bool: NaN somewhere.
        """
        tokens, _, _, parent_rows, lineage = beam
        features = rows_of(self.drafter.next_feature(hidden), parent_rows)
        hidden = self.drafter(tokens, features, *self.level_rows(lineage, n, active, level))
        tokens, log_probs = self.children(hidden, n, level + 2)
        pool, beam, broken = grow_level(pool, beam, tokens, log_probs)
        return pool, beam, hidden, broken

    def level_rows(
        self, lineage: Tensor, n: Tensor, active: Tensor, level: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Positions ``[B, k]``, slots ``[B, k]`` and mask ``[B, 1, k, S_d]`` of a level's rows."""
        batch = n.shape[0]
        return (
            ops.broadcast_to((n + level).reshape(batch, 1), (batch, self.branch)),
            self.landing(n, active, level),
            level_mask(n, n, lineage, self.slots),
        )

    def children(self, hidden: Tensor, n: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The ``k`` children of each row, best first: teacher ids and log-probabilities, ``[B, R, k]``.

        Args:
            hidden: ``[B, R, E]``.
            n: ``[B]``, the committed length; depth: of the children. The head needs neither.
        """
        batch, rows, _ = hidden.shape
        logits = self.drafter.logits(hidden).reshape(batch * rows, self.drafter.draft_vocab_size)
        ids, log_probs = top_children(logits, self.branch)
        shape = (batch, rows, self.branch)
        return ops.gather(self.drafter.target_ids, ids, 0).reshape(shape), log_probs.reshape(shape)

    def landing(self, n: Tensor, active: Tensor, level: int) -> Tensor:
        """Where a level's rows go: past the committed ones, or to the trash slot, ``[B, k]``."""
        slots = level_slots(n, level, self.branch)
        return ops.select(
            ops.broadcast_to(active.reshape(active.shape[0], 1), slots.shape),
            slots,
            ops.full_like(slots, self.slots - 1),
        )

    def extend(self, taps: Tensor, tokens: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Take committed tokens into the drafter's cache, from true taps.

        Args:
            taps: ``[B, R, F]``, the teacher's taps at positions ``start + r``.
            tokens: ``[B, R]`` int32, the token after each of these positions.
            start: ``[B]`` int32.
            count: ``[B]`` int32: how many of the R rows count; 0 leaves a sequence alone.
            state: ``[B, E]``, kept where ``count`` is 0.

        Returns:
            the new state.
        """
        batch, rows = tokens.shape
        hidden = self.drafter(tokens, self.drafter.fuse(taps), *chunk_rows(start, count, rows, self.slots))
        some = count > 0
        last = ops.select(some, count - 1, ops.zeros_like(count)).reshape(batch, 1)
        newest = rows_of(hidden, last).reshape(batch, self.drafter.hidden_size)
        return ops.select(ops.broadcast_to(some.reshape(batch, 1), newest.shape), newest, state)


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Pick rows of each sequence: ``[B, R, E]`` by ``[B, T]`` int32 in ``[0, R) -> [B, T, E]``."""
    batch, length, width = x.shape
    first = ops.arange(batch).astype(ms.int32).reshape(batch, 1) * length
    picked = ops.gather(x.reshape(batch * length, width), (rows + first).reshape(rows.size), 0)
    return picked.reshape(batch, rows.shape[1], width)
