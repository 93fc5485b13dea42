"""The stages of a cycle as Cells of their own, each compiled alone; reference mode runs them one by one.

Every Cell calls the functions that the one graph of ``cycle`` is made of. Positions, slots and masks have
Cells of their own, so that they can be checked before a forward uses them. Tuples of tensors are passed one
by one: graph mode would take a tuple argument for a constant.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.cycle.cycle import EagleCycle, lone_root
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.models.backend import Steps
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.tensorize import Tree

POOL = 4  # tensors of a ``tree.Pool``


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

    def __init__(self, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.steps = proposer.steps

    def construct(self, lineage: Tensor, n: Tensor, active: Tensor) -> Rows:
        """See ``Steps.level_rows``."""
        return self.steps.level_rows(n, active, lineage)


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

    def __init__(self, tensorizer: nn.Cell) -> None:
        super().__init__()
        self.tensorizer = tensorizer

    def construct(self, n: Tensor, active: Tensor, *pool: Tensor) -> tuple[Tree, Rows, Tensor]:
        """See ``Steps.tensorizer``."""
        return self.tensorizer(*pool, n, active)


class LoneRoot(nn.Cell):
    """Stands in for drafting where there is no drafter: a tree that is only its root."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def construct(self, root: Tensor, n: Tensor, active: Tensor) -> tuple[Tree, Rows, Tensor]:
        """See ``cycle.lone_root``."""
        return lone_root(self.steps, root, n, active)


class Accept(nn.Cell):
    """How far the teacher's choices follow the tree."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def construct(
        self, choices: Tensor, active: Tensor, *tree: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See ``accept.accept``; ``tree`` are the tensors of a ``Tree``."""
        return self.steps.accept(tree, choices, active)


class Moves(nn.Cell):
    """The slots that a commit moves from and to."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """See ``accept.path_slots``."""
        return self.steps.moves(path, count, n)


class Extend(nn.Cell):
    """Takes the accepted tokens into the drafter's cache, from the teacher's true taps."""

    def __init__(self, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.proposer = proposer

    def construct(
        self, taps: Tensor, path: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor
    ) -> Tensor:
        """The drafter's new state."""
        return self.proposer.extend(self.proposer.steps.pick(taps, path), emitted, n, count, state)


class Report(nn.Cell):
    """What the host reads, after the emitted tokens have been noted for the repetition penalty."""

    def __init__(self, choose: nn.Cell, steps: Steps) -> None:
        super().__init__()
        self.choose, self.steps = choose, steps

    def construct(
        self, emitted: Tensor, count: Tensor, n: Tensor, teacher_fault: Tensor, drafter_fault: Tensor
    ) -> Tensor:
        """``[B, 2 + T]`` int32, see ``Steps.report``; faults are ``[B]`` bool."""
        emitted = self.choose.remember(emitted, count)
        return self.steps.report(count, teacher_fault, drafter_fault, n, emitted)


class ChunkRows(nn.Cell):
    """The rows of a chunk of consecutive tokens."""

    def __init__(self, rows: int, steps: Steps) -> None:
        super().__init__()
        self.rows, self.steps = rows, steps

    def construct(self, start: Tensor, count: Tensor) -> Rows:
        """See ``Steps.chunk_rows``."""
        tokens = ops.zeros((start.shape[0], self.rows), ms.int32)
        return self.steps.chunk_rows(tokens, start, count)


class Stages:
    """The stages that do not depend on how tokens are chosen: greedy and sampled cycles share them.

    Attributes:
        lone: makes the tree without a drafter; the other attributes but ``accept`` exist with one only.
        levels: rows and forward of each further level.
    """

    def __init__(self, cell: nn.Cell) -> None:
        """Take apart a ``TeacherCycle`` or an ``EagleCycle``."""
        self.accept = Accept(cell.steps)
        self.speculates = isinstance(cell, EagleCycle)
        if not self.speculates:
            self.lone = LoneRoot(cell.steps)
            self.cells: tuple[nn.Cell, ...] = (self.accept, self.lone)
            return
        proposer = cell.proposer
        self.branch = proposer.branch
        self.log_confidence = float(cell.tensorize.log_confidence.asnumpy()[0])
        self.sprout = Sprout(proposer)
        steps = range(proposer.depth - 1)
        self.levels = [(LevelRows(proposer), Level(proposer, step)) for step in steps]
        self.tensorize = Tensorize(cell.tensorize)
        self.moves, self.commit = Moves(cell.steps), cell.reorder
        self.extend_rows, self.extend = ChunkRows(cell.depth + 1, proposer.steps), Extend(proposer)
        drafting = (self.sprout, *(stage for level in self.levels for stage in level), self.tensorize)
        taking = (self.accept, self.moves, self.commit, self.extend_rows, self.extend)
        self.cells = (*drafting, *taking)
