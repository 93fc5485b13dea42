"""The stages of a cycle as Cells of their own, each compiled alone; reference mode runs them one by one.

Every Cell calls the functions that the one graph of ``cycle`` is made of, and returns besides their results
the index tensors that they handed to gathers and scatters. Tuples of tensors are passed one by one: graph
mode would take a tuple argument for a constant.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.accept import accept, path_slots
from ms_eagle.cycle import emitted_rows, fault_code, report, tree_rows, usable_rows
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


class Level(nn.Cell):
    """Draft, a further level: one forward of the drafter."""

    def __init__(self, proposer: Eagle3Proposer, level: int) -> None:
        super().__init__()
        self.proposer, self.level = proposer, level

    def construct(
        self, hidden: Tensor, n: Tensor, active: Tensor, *grown: Tensor
    ) -> tuple[Rows, tuple, tuple, Tensor, Tensor]:
        """See ``Eagle3Proposer.grow``; ``grown`` are the tensors of the pool, then those of the beam.

        Returns:
            the rows of the forward, and what ``grow`` returns.
        """
        pool, beam = grown[:POOL], grown[POOL:]
        rows = self.proposer.level_rows(beam[4], n, active, self.level)
        pool, beam, hidden, broken = self.proposer.grow(pool, beam, hidden, n, active, self.level)
        return rows, pool, beam, hidden, broken


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


class Commit(nn.Cell):
    """Moves the accepted path's rows behind the committed ones."""

    def __init__(self, reorder: nn.Cell) -> None:
        super().__init__()
        self.reorder = reorder
        self.trash = reorder.cache.trash

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new committed length ``[B]``, and the slots moved from and to, ``[B, D+1]`` each."""
        return self.reorder(path, count, n), path_slots(path, count, n, self.trash)


class Extend(nn.Cell):
    """Takes the accepted tokens into the drafter's cache, from the teacher's true taps."""

    def __init__(self, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.proposer = proposer

    def construct(
        self, taps: Tensor, path: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor
    ) -> tuple[Rows, Tensor]:
        """The rows of the forward and the drafter's new state."""
        rows = chunk_rows(n, count, emitted.shape[1], self.proposer.slots)
        return rows, self.proposer.extend(rows_of(taps, path), emitted, n, count, state)


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
    """The rows of a prefill chunk in a cache of so many slots."""

    def __init__(self, rows: int, slots: int) -> None:
        super().__init__()
        self.rows, self.slots = rows, slots

    def construct(self, start: Tensor, count: Tensor) -> Rows:
        """See ``masks.chunk_rows``."""
        return chunk_rows(start, count, self.rows, self.slots)
