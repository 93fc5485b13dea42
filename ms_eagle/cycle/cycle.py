"""One decoding cycle as one graph: everything between the root going in and the emitted tokens coming out.

Both Cells here are called alike (see ``engine``):

======= ================ =====================================================================
root    ``[B]`` int32    the last emitted token, whose KV is not in the cache yet
n       ``[B]`` int32    the committed length
active  ``[B]`` bool     a sequence that is not active changes the trash slots only
params  ``[B, 15]``      see ``sampling.params_tensor``
uniforms ``[B, P]``      the uniform of every absolute position
state   ``[B, ...]``     the drafter's
======= ================ =====================================================================

and return the report ``[B, 2 + T]`` int32 (count, fault, up to T tokens) and the new state.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.cycle.verifier import Verifier
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.models.backend import Steps
from ms_eagle.tree.growth import TreeShape
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.tensorize import Tree


class TeacherCycle(nn.Cell):
    """The cycle without a drafter: a tree that is only its root, so one token a cycle."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__()
        self.verifier, self.steps = verifier, verifier.teacher.steps

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's. The state is handed through."""
        tree, (places, slots, seen), paths = lone_root(self.steps, root, n, active)
        choices, _, fault = self.verifier(tree[0], places, slots, seen, paths, params, uniforms)
        count = active.astype(ms.int32)
        emitted = self.verifier.choose.remember(choices, count)
        return self.steps.report(count, fault, fault, n, emitted), state


class EagleCycle(nn.Cell):
    """Draft, tensorize, verify, accept, commit, extend (DESIGN.md, "The cycle")."""

    def __init__(
        self,
        proposer: Eagle3Proposer,
        verifier: Verifier,
        reorder: nn.Cell,
        shape: TreeShape,
        log_confidence: float,
    ) -> None:
        super().__init__()
        self.proposer, self.verifier, self.reorder = proposer, verifier, reorder
        self.steps, self.depth = verifier.teacher.steps, shape.depth
        self.tensorize = self.steps.tensorizer(shape, log_confidence)

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's, T is ``D + 1``."""
        pool, broken = self.proposer.propose(root, n, active, state)
        tree, (places, slots, seen), paths = self.tensorize(*pool, n, active)
        choices, taps, fault = self.verifier(tree[0], places, slots, seen, paths, params, uniforms)
        _, path, emitted, count = self.steps.accept(tree, choices, active)
        self.reorder(path, count, n)
        state = self.proposer.extend(self.steps.pick(taps, path), emitted, n, count, state)
        emitted = self.verifier.choose.remember(emitted, count)
        return self.steps.report(count, fault, broken, n, emitted), state


def lone_root(steps: Steps, root: Tensor, n: Tensor, active: Tensor) -> tuple[Tree, Rows, Tensor]:
    """A tree that is only its root; arguments are the module's, results those of ``Steps.tensorizer``."""
    batch = root.shape[0]
    tokens, valid = root.reshape(batch, 1), active.reshape(batch, 1)
    zeros, ancestors = ops.zeros((batch, 1), ms.int32), ops.zeros((batch, 1, 1), ms.int32)
    laid, scores = ops.ones((batch, 1), ms.bool_), ops.zeros((batch, 1), ms.float32)
    places, slots, seen, paths = steps.tree_rows(tokens, zeros, valid, ancestors, n)
    return (tokens, zeros, zeros, laid, valid, scores, ancestors), (places, slots, seen), paths
