"""The stages of a cycle as Cells of their own, each compiled alone; reference mode runs them one by one.

Every Cell calls the functions that the one graph of ``cycle`` is made of. Positions, slots and masks have
Cells of their own, so that they can be checked before a forward uses them. Tuples of tensors are passed one
by one: graph mode would take a tuple argument for a constant.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.accept import accept, path_slots
from ms_eagle.cycle import EagleCycle, emitted_rows, fault_code, report, tree_rows, usable_rows
from ms_eagle.masks import chunk_rows
from ms_eagle.proposer import Eagle3Proposer, rows_of
from ms_eagle.tensorize import tensorize

POOL = 4  # tensors of a ``tree.Pool``

Rows = tuple[Tensor, Tensor, Tensor]
"""Positions, slots and mask of a forward's rows."""

Tree = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Tokens, parents, depths, the rows laid out, those that take part, scores, ``[B, N]`` each; ancestors
``[B, D+1, N]``."""


class Sprout(nn.Cell):
    """Draft, first level: the root's children."""

    def __init__(self, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.proposer = proposer

    def construct(self, root: Tensor, n: Tensor, state: Tensor) -> tuple[tuple, tuple, Tensor, Tensor]:
        """See ``Eagle3Proposer.sprout``."""
        return self.proposer.sprout(root, n, state)


class LevelRows(nn.Cell):
    """The rows of a level's forward."""

    def __init__(self, proposer: Eagle3Proposer, level: int) -> None:
        super().__init__()
        self.proposer, self.level = proposer, level

    def construct(self, lineage: Tensor, n: Tensor, active: Tensor) -> Rows:
        """See ``Eagle3Proposer.level_rows``."""
        return self.proposer.level_rows(lineage, n, active, self.level)


class Level(nn.Cell):
    """Draft, a further level: one forward of the drafter."""

    def __init__(self, proposer: Eagle3Proposer, level: int) -> None:
        super().__init__()
        self.proposer, self.level = proposer, level

    def construct(
        self, hidden: Tensor, n: Tensor, active: Tensor, *grown: Tensor
    ) -> tuple[tuple, tuple, Tensor, Tensor]:
        """See ``Eagle3Proposer.grow``; ``grown`` are the tensors of the pool, then those of the beam."""
        return self.proposer.grow(grown[:POOL], grown[POOL:], hidden, n, active, self.level)


class Tensorize(nn.Cell):
    """The pool's best candidates as the rows of a tree batch, and what the teacher needs to run them."""

    def __init__(self, budget: int, depth: int, log_confidence: Tensor, slots: int) -> None:
        super().__init__()
        self.budget, self.depth, self.slots = budget, depth, slots
        self.log_confidence = log_confidence

    def construct(self, n: Tensor, active: Tensor, *pool: Tensor) -> tuple[Tree, Rows, Tensor]:
        """Lay out; the last result is the tokens along each row's path, ``[B, D+1, N]``."""
        tokens, parents, depths, laid, ancestors, scores = tensorize(
            pool, self.budget, self.depth, self.log_confidence
        )
        valid = usable_rows(laid, n, active)
        places, slots, mask, paths = tree_rows(tokens, depths, valid, ancestors, n, self.slots)
        return (tokens, parents, depths, laid, valid, scores, ancestors), (places, slots, mask), paths


class LoneRoot(nn.Cell):
    """Stands in for drafting where there is no drafter: a tree that is only its root."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    def construct(self, root: Tensor, n: Tensor, active: Tensor) -> tuple[Tree, Rows, Tensor]:
        """As ``Tensorize``, with one row."""
        batch = root.shape[0]
        tokens, valid = root.reshape(batch, 1), active.reshape(batch, 1)
        zeros, ancestors = ops.zeros((batch, 1), ms.int32), ops.zeros((batch, 1, 1), ms.int32)
        laid, scores = ops.ones((batch, 1), ms.bool_), ops.zeros((batch, 1), ms.float32)
        places, slots, mask, paths = tree_rows(tokens, zeros, valid, ancestors, n, self.slots)
        return (tokens, zeros, zeros, laid, valid, scores, ancestors), (places, slots, mask), paths


class Accept(nn.Cell):
    """How far the teacher's choices follow the tree."""

    def construct(
        self,
        tokens: Tensor,
        parents: Tensor,
        depths: Tensor,
        valid: Tensor,
        ancestors: Tensor,
        choices: Tensor,
        active: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """See ``accept.accept``."""
        return accept(tokens, parents, depths, valid, ancestors, choices, active)


class Moves(nn.Cell):
    """The slots that a commit moves from and to."""

    def __init__(self, trash: int) -> None:
        super().__init__()
        self.trash = trash

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """See ``accept.path_slots``."""
        return path_slots(path, count, n, self.trash)


class Extend(nn.Cell):
    """Takes the accepted tokens into the drafter's cache, from the teacher's true taps."""

    def __init__(self, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.proposer = proposer

    def construct(
        self, taps: Tensor, path: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor
    ) -> Tensor:
        """The drafter's new state."""
        return self.proposer.extend(rows_of(taps, path), emitted, n, count, state)


class Report(nn.Cell):
    """What the host reads, after the emitted tokens have been noted for the repetition penalty."""

    def __init__(self, choose: nn.Cell) -> None:
        super().__init__()
        self.choose = choose

    def construct(
        self, emitted: Tensor, count: Tensor, n: Tensor, teacher_fault: Tensor, drafter_fault: Tensor
    ) -> Tensor:
        """``[B, 2 + T]`` int32, see ``cycle.report``; faults are ``[B]`` bool."""
        emitted = self.choose.remember(emitted, emitted_rows(emitted, count))
        return report(count, fault_code(teacher_fault, ops.logical_and(drafter_fault, n > 0)), emitted)


class ChunkRows(nn.Cell):
    """The rows of a chunk of consecutive tokens in a cache of so many slots."""

    def __init__(self, rows: int, slots: int) -> None:
        super().__init__()
        self.rows, self.slots = rows, slots

    def construct(self, start: Tensor, count: Tensor) -> Rows:
        """See ``masks.chunk_rows``."""
        return chunk_rows(start, count, self.rows, self.slots)


class Stages:
    """The stages that do not depend on how tokens are chosen: greedy and sampled cycles share them.

    Attributes:
        lone: makes the tree without a drafter; the other attributes but ``accept`` exist with one only.
        levels: rows and forward of each further level.
    """

    def __init__(self, cell: nn.Cell, slots: int) -> None:
        """Take apart a ``TeacherCycle`` or an ``EagleCycle`` over a teacher's cache of ``slots``."""
        self.accept = Accept()
        self.speculates = isinstance(cell, EagleCycle)
        if not self.speculates:
            self.lone = LoneRoot(slots)
            self.cells: tuple[nn.Cell, ...] = (self.accept, self.lone)
            return
        proposer = cell.proposer
        self.branch = proposer.branch
        self.log_confidence = float(cell.log_confidence.asnumpy())
        self.sprout = Sprout(proposer)
        steps = range(proposer.depth - 1)
        self.levels = [(LevelRows(proposer, step), Level(proposer, step)) for step in steps]
        self.tensorize = Tensorize(cell.budget, cell.depth, cell.log_confidence, slots)
        self.moves, self.commit = Moves(cell.reorder.cache.trash), cell.reorder
        self.extend_rows, self.extend = ChunkRows(cell.depth + 1, proposer.slots), Extend(proposer)
        drafting = (self.sprout, *(stage for level in self.levels for stage in level), self.tensorize)
        taking = (self.accept, self.moves, self.commit, self.extend_rows, self.extend)
        self.cells = (*drafting, *taking)
