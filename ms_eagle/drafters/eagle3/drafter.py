"""Drafting: from the drafter's state to a pool of candidate tokens, and back to a state after acceptance.

A proposer is a Cell that the cycle calls twice: ``propose`` grows the pool of a tree, ``extend`` takes the
accepted tokens with their true taps into the drafter's cache. Its state is one tensor, passed in and out.
"""

from mindspore import Tensor, nn, ops

from ms_eagle.drafters.eagle3.head import Drafter
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.shape import TreeShape


class Eagle3Proposer(nn.Cell):
    """Grows a dynamic tree with an EAGLE-3 head: one forward of ``k`` rows a level.

    The state is the hidden state of the drafter's last row, ``[B, E]``: what follows the committed tokens.
    """

    def __init__(self, drafter: Drafter, shape: TreeShape) -> None:
        super().__init__()
        self.drafter, self.steps = drafter, drafter.steps
        self.branch, self.depth = shape.branch, shape.depth
        self.best = drafter.children(shape.branch)

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
        hidden = state.reshape(root.shape[0], 1, self.drafter.hidden_size)
        pool, beam, broken = self.steps.grow_root(root, *self.children(hidden, n, 1))
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
        features = self.steps.pick(self.drafter.next_feature(hidden), parent_rows)
        hidden = self.drafter(tokens, features, *self.steps.level_rows(n, active, lineage))
        pool, beam, broken = self.steps.grow_level(pool, beam, *self.children(hidden, n, level + 2))
        return pool, beam, hidden, broken

    def children(self, hidden: Tensor, n: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The ``k`` children of each row, best first: teacher ids and log-probabilities, ``[B, R, k]``.

        Args:
            hidden: ``[B, R, E]``.
            n: ``[B]``, the committed length; depth: of the children. The head needs neither.
        """
        return self.best(hidden)

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
        rows = self.steps.chunk_rows(tokens, start, count)
        hidden = self.drafter(tokens, self.drafter.fuse(taps), *rows)
        return self.steps.last_row(hidden, count, state)
