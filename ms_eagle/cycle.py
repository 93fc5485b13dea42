"""One decoding cycle as one graph: everything between the root going in and the emitted tokens coming out.

Both Cells here are called alike (see ``engine``):

======= ================ =====================================================================
root    ``[B]`` int32    the last emitted token, whose KV is not in the cache yet
n       ``[B]`` int32    the committed length
active  ``[B]`` bool     a sequence that is not active changes the trash slots only
params  ``[B, 5]``       see ``sampling.params_tensor``
uniforms ``[B, P]``      the uniform of every absolute position
state   ``[B, ...]``     the drafter's
======= ================ =====================================================================

and return the report ``[B, 2 + T]`` int32 (count, fault, up to T tokens) and the new state.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.accept import accept
from ms_eagle.masks import positions, row_slots, tree_mask
from ms_eagle.proposer import Eagle3Proposer, rows_of
from ms_eagle.tensorize import tensorize
from ms_eagle.tree import TreeShape
from ms_eagle.verifier import Verifier

# Fault codes of a report, by priority.
HEALTHY, TEACHER_NOT_FINITE, DRAFTER_NOT_FINITE = 0, 1, 2


class TeacherCycle(nn.Cell):
    """The cycle without a drafter: a tree that is only its root, so one token a cycle."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__()
        self.verifier = verifier
        self.slots = verifier.teacher.cache.shape[2]

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's. The state is handed through."""
        batch = root.shape[0]
        tokens, places, valid = root.reshape(batch, 1), n.reshape(batch, 1), active.reshape(batch, 1)
        alone = ops.zeros((batch, 1, 1), ms.int32)  # the ancestor table of a lone root
        slots = row_slots(n, valid, self.slots - 1)
        mask = tree_mask(n, alone, valid, self.slots)
        paths = tokens.reshape(batch, 1, 1)
        choices, _, fault = self.verifier(tokens, places, slots, mask, paths, params, uniforms)
        emitted = self.verifier.choose.remember(choices, valid)
        return report(active.astype(ms.int32), fault.astype(ms.int32), emitted), state


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
        self.budget, self.depth = shape.budget, shape.depth
        self.slots = verifier.teacher.cache.shape[2]
        self.log_confidence = Tensor(log_confidence, ms.float32)

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are the module's, T is ``D + 1``."""
        pool, broken = self.proposer.propose(root, n, active, state)
        tokens, parents, depths, valid, ancestors, _ = tensorize(
            pool, self.budget, self.depth, self.log_confidence
        )
        valid = usable_rows(valid, n, active)
        places, slots, mask, paths = tree_rows(tokens, depths, valid, ancestors, n, self.slots)
        choices, taps, fault = self.verifier(tokens, places, slots, mask, paths, params, uniforms)
        _, path, _, emitted, count = accept(tokens, parents, depths, valid, ancestors, choices, active)
        self.reorder(path, count, n)
        state = self.proposer.extend(rows_of(taps, path), emitted, n, count, state)
        emitted = self.verifier.choose.remember(emitted, emitted_rows(emitted, count))
        return report(count, fault_code(fault, ops.logical_and(broken, n > 0)), emitted), state


def usable_rows(valid: Tensor, n: Tensor, active: Tensor) -> Tensor:
    """Rows that take part, ``[B, N]`` bool: none of an idle sequence, only the root where ``n`` is 0.

    With ``n = 0`` (a prompt of one token) the drafter has seen nothing: its state is not a proposal.
    """
    batch, rows = valid.shape
    is_root = (ops.arange(rows) == 0).reshape(1, rows)
    drafted = ops.logical_and(valid, (n > 0).reshape(batch, 1))
    return ops.logical_and(ops.logical_or(drafted, is_root), active.reshape(batch, 1))


def tree_rows(
    tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, n: Tensor, slots: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the teacher needs to run a tree's rows besides their tokens.

    Args:
        tokens, depths: ``[B, N]`` int32; valid: ``[B, N]`` bool; ancestors: ``[B, D+1, N]`` int32.
        n: ``[B]`` int32.
        slots: S, a Python integer.

    Returns:
        positions ``[B, N]``, slots ``[B, N]``, mask ``[B, 1, N, S]``, and the tokens along each row's path,
        ``[B, D+1, N]``.
    """
    batch, levels, rows = ancestors.shape
    paths = ops.gather_d(tokens, 1, ancestors.reshape(batch, levels * rows)).reshape(batch, levels, rows)
    return (
        positions(n, depths),
        row_slots(n, valid, slots - 1),
        tree_mask(n, ancestors, valid, slots),
        paths,
    )


def emitted_rows(emitted: Tensor, count: Tensor) -> Tensor:
    """Which entries of ``[B, T]`` are emitted tokens, bool."""
    batch, width = emitted.shape
    return ops.arange(width).astype(ms.int32).reshape(1, width) < count.reshape(batch, 1)


def fault_code(teacher: Tensor, drafter: Tensor) -> Tensor:
    """Combine two ``[B]`` bool flags into one code, ``[B]`` int32."""
    code = drafter.astype(ms.int32) * DRAFTER_NOT_FINITE
    return ops.select(teacher, ops.full_like(code, TEACHER_NOT_FINITE), code)


def report(count: Tensor, fault: Tensor, emitted: Tensor) -> Tensor:
    """Pack ``[B]``, ``[B]`` and ``[B, T]`` int32 into the one tensor ``[B, 2 + T]`` that the host reads."""
    batch = count.shape[0]
    return ops.cat((count.reshape(batch, 1), fault.reshape(batch, 1), emitted), 1)
