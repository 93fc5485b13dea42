"""One decoding cycle as one graph: everything between the root going in and the emitted tokens coming out.

Both Cells here are called alike (see ``engine``):

======= ================ =====================================================================
root    ``[B]`` int32    the last emitted token, whose KV is not in the cache yet
n       ``[B]`` int32    the committed length
active  ``[B]`` bool     a sequence that is not active changes the trash slots only
params  ``[B, 15]``      see ``sampling.params_tensor``
uniforms ``[B, P]``      the uniform of every absolute position
state   ``[B, ...]``     the drafter's
hints                    what ``Drafter.hints`` made; none in plain decoding
======= ================ =====================================================================

and return the report ``[B, 2 + T]`` int32 (count, fault, up to T tokens) and the new state.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.cycle.verifier import Verifier
from ms_eagle.drafters.base import Drafter
from ms_eagle.models.backend import Steps
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import Tree


class PlainCycle(nn.Cell):
    """Plain decoding: a tree that is only its root, so one token a cycle."""

    def __init__(self, verifier: Verifier, drafter: Drafter) -> None:
        """``drafter``: takes the token in, to be ready for a larger tree."""
        super().__init__()
        self.verifier, self.drafter, self.steps = verifier, drafter, verifier.teacher.steps

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's."""
        tree, rows, paths = root_alone(self.steps, root, n, active)
        choices, taps, fault = self.verifier(tree[0], *rows, paths, params, uniforms)
        count = active.astype(ms.int32)
        state = self.drafter.take(taps, choices, n, count, state)
        emitted = self.verifier.choose.remember(choices, count)
        return self.steps.report(count, fault, fault, n, emitted), state


class TreeCycle(nn.Cell):
    """Draft, tensorize, verify, accept, commit, take."""

    def __init__(
        self, drafter: Drafter, verifier: Verifier, reorder: nn.Cell, tier: TreeShape, log_confidence: float
    ) -> None:
        """Make the cycle of one tree size.

        Args:
            drafter: for trees of that size.
            verifier: with the taps the drafter needs.
            reorder: moves accepted rows of the teacher's cache.
            tier: the tree.
            log_confidence: nodes of a lower cumulative log-probability become padding.
        """
        super().__init__()
        self.drafter, self.verifier, self.reorder = drafter, verifier, reorder
        self.steps = verifier.teacher.steps
        self.tensorize = self.steps.tensorizer(tier, log_confidence)

    def construct(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        params: Tensor,
        uniforms: Tensor,
        state: Tensor,
        *hints: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's, T is ``D + 1``."""
        pool, broken = self.drafter.propose(root, n, active, state, *hints)
        tree, rows, paths = self.tensorize(*pool, n, active)
        choices, taps, fault = self.verifier(tree[0], *rows, paths, params, uniforms)
        _, path, emitted, count = self.steps.accept(tree, choices, active)
        self.reorder(path, count, n)
        state = self.drafter.take(self.steps.pick(taps, path), emitted, n, count, state)
        emitted = self.verifier.choose.remember(emitted, count)
        return self.steps.report(count, fault, broken, n, emitted), state


def root_alone(steps: Steps, root: Tensor, n: Tensor, active: Tensor) -> tuple[Tree, Rows, Tensor]:
    """A tree that is only its root; arguments are the module's, results those of ``Steps.tensorizer``."""
    batch = root.shape[0]
    tokens, valid = root.reshape(batch, 1), active.reshape(batch, 1)
    zeros, ancestors = ops.zeros((batch, 1), ms.int32), ops.zeros((batch, 1, 1), ms.int32)
    laid, scores = ops.ones((batch, 1), ms.bool_), ops.zeros((batch, 1), ms.float32)
    places, slots, seen, paths = steps.tree_rows(tokens, zeros, valid, ancestors, n)
    return (tokens, zeros, zeros, laid, valid, scores, ancestors), (places, slots, seen), paths
