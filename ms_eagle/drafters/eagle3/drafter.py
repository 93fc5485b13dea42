"""Drafting with an EAGLE-3 head: a dynamic tree, one forward of ``k`` rows a level (arXiv 2503.01840)."""

from mindspore import Tensor, nn, ops

from ms_eagle.drafters.base import Drafter, Needs
from ms_eagle.drafters.eagle3.head import DraftHead
from ms_eagle.drafters.eagle3.stages import LevelStages
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.shape import candidates


class Eagle3Drafter(Drafter):
    """Grows a tree level by level with a head.

    The state is the hidden state of the head's last row, ``[B, E]``: what follows the committed tokens.
    """

    def __init__(self, head: DraftHead, depth: int, branch: int, best: nn.Cell | None = None) -> None:
        """Draft trees of depth D with k children a node.

        Args:
            head: with a cache of at least ``capacity + (D-1) k + 1`` slots.
            depth, branch: D and k.
            best: what makes ``branch`` children, where it is there already.
        """
        super().__init__()
        self.head, self.steps = head, head.steps
        self.needs = Needs(head.taps)
        self.depth, self.branch, self.pool = depth, branch, candidates(depth, branch)
        self.best = best or head.children(branch)

    def empty(self, batch: int) -> Tensor:
        """No feature yet: zeros ``[B, E]``."""
        return ops.zeros((batch, self.head.hidden_size), self.head.dtype)

    def read(self, window: Tensor, taps: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Pair every position of a chunk with the token after it."""
        return self.take(taps, window[:, 1:], start, count, state)

    def propose(
        self, root: Tensor, n: Tensor, active: Tensor, state: Tensor, *hints: Tensor
    ) -> tuple[Pool, Tensor]:
        """Grow the pool: ``k`` children of the root, then ``k`` of each of the ``k`` best of a level."""
        pool, beam, hidden, broken = self.sprout(root, state, *hints)
        for level in range(self.depth - 1):
            pool, beam, hidden, bad = self.grow(pool, beam, hidden, n, active, level, *hints)
            broken = ops.logical_or(broken, bad)
        return pool, broken

    def sprout(self, root: Tensor, state: Tensor, *hints: Tensor) -> tuple[Pool, Beam, Tensor, Tensor]:
        """The root's children, from the state alone.

        Returns:
            pool, beam, the hidden states ``[B, 1, E]`` they come from, and ``[B]`` bool: NaN somewhere.
        """
        hidden = state.reshape(root.shape[0], 1, self.head.hidden_size)
        pool, beam, broken = self.steps.grow_root(root, *self.children(hidden, 1, hints))
        return pool, beam, hidden, broken

    def grow(
        self,
        pool: Pool,
        beam: Beam,
        hidden: Tensor,
        n: Tensor,
        active: Tensor,
        level: int,
        *hints: Tensor,
    ) -> tuple[Pool, Beam, Tensor, Tensor]:
        """One level more: forward the beam's ``k`` nodes and give each of them ``k`` children.

        Args:
            pool, beam, hidden: of the level before; hidden ``[B, R, E]``.
            n, active, hints: as for ``propose``.
            level: 0 for the forward of the root's children, a constant.

        Returns:
            pool, beam, hidden states ``[B, k, E]``, and ``[B]`` bool: NaN somewhere.
        """
        tokens, _, _, parent_rows, lineage = beam
        features = self.steps.pick(self.head.next_feature(hidden), parent_rows)
        hidden = self.head(tokens, features, *self.steps.level_rows(n, active, lineage))
        pool, beam, broken = self.steps.grow_level(pool, beam, *self.children(hidden, level + 2, hints))
        return pool, beam, hidden, broken

    def children(self, hidden: Tensor, depth: int, hints: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The ``k`` children of each row, best first: teacher ids and log-probabilities, ``[B, R, k]``.

        Args:
            hidden: ``[B, R, E]``.
            depth: of the children, a constant; hints: as for ``propose``. The head needs neither.
        """
        return self.best(hidden)

    def take(self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Write the emitted tokens to the head's cache, from true taps."""
        rows = self.steps.chunk_rows(emitted, n, count)
        hidden = self.head(emitted, self.head.fuse(taps), *rows)
        return self.steps.last_row(hidden, count, state)

    def caches(self) -> tuple[KVCache, ...]:
        """The head's."""
        return (self.head.cache,)

    def resized(self, depth: int, branch: int) -> "Eagle3Drafter":
        """The same head, for trees of another size."""
        return Eagle3Drafter(self.head, depth, branch, self.best if branch == self.branch else None)

    def stages(self) -> LevelStages:
        """One forward a stage."""
        return LevelStages(self)
