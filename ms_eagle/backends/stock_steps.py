"""The steps of a cycle between its forwards, behind one interface: growth, rows, acceptance, report.

They compute whole numbers and comparisons only. ``StockSteps`` (here) is made of the pure functions of
``tree``, ``tensorize``, ``masks`` and ``accept``: the readable reference, in operators that every device has.
``NativeSteps`` (``native_steps``) has each step as one CPU kernel. Both give the same integers.

``seen`` says what rows see in the form that the backend's layers take: a mask ``[B, 1, N, S]`` bool,
True = discard, or lists of slots ``[B, N, 2 + X]`` int32 (``kernels.native``). ``mask_of`` turns either into
a mask on the host.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_eagle.tree import accept, masks
from ms_eagle.tree import growth as tree
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.report import DRAFTER_NOT_FINITE, TEACHER_NOT_FINITE
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import tensorize

Rows = tuple[Tensor, Tensor, Tensor]
"""Positions and slots ``[B, N]`` int32, and what each row sees."""

Tree = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Tokens, parents, depths, the rows laid out, those that take part, scores, ``[B, N]`` each; ancestors
``[B, D+1, N]``."""


class StockSteps(nn.Cell):
    """The steps over a cache of ``slots`` slots per sequence."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    def tensorizer(self, shape: TreeShape, log_confidence: float) -> nn.Cell:
        """A Cell that lays out trees of one shape; see ``Tensorizer``."""
        return Tensorizer(shape, log_confidence, self.slots)

    def chunk_rows(self, tokens: Tensor, start: Tensor, count: Tensor) -> Rows:
        """Rows of a chunk of consecutive tokens.

        Args:
            tokens: ``[B, T]``, for its shape.
            start: ``[B]`` int32; count: ``[B]`` int32 in ``0..T``, see ``masks.chunk_rows``.
        """
        return masks.chunk_rows(start, count, tokens.shape[1], self.slots)

    def level_rows(self, start: Tensor, active: Tensor, lineage: Tensor) -> Rows:
        """Rows of a drafter's level, which follows those before it.

        Args:
            start: ``[B]`` int32, the committed length.
            active: ``[B]`` bool; other sequences write to the trash slot.
            lineage: ``[B, l, k]`` int32, see ``tree.Beam``.
        """
        batch, levels, branch = lineage.shape
        slots = masks.level_slots(start, levels - 1, branch)
        landing = ops.select(
            ops.broadcast_to(active.reshape(batch, 1), slots.shape),
            slots,
            ops.full_like(slots, self.slots - 1),
        )
        places = ops.broadcast_to((start + (levels - 1)).reshape(batch, 1), (batch, branch))
        return places, landing, masks.level_mask(start, start, lineage, self.slots)

    def tree_rows(
        self, tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of a tree, and the tokens along each row's path.

        Args:
            tokens: ``[B, N]`` int32; depths: ``[B, N]`` int32; valid: ``[B, N]`` bool.
            ancestors: ``[B, D+1, N]`` int32.
            start: ``[B]`` int32.

        Returns:
            ``Rows`` and ``[B, D+1, N]`` int32.
        """
        return rows_of_tree(tokens, depths, valid, ancestors, start, self.slots)

    def grow_root(self, root: Tensor, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
        """``tree.grow_root`` with ``tokens`` and ``log_probs`` ``[B, 1, k]``."""
        batch, _, k = tokens.shape
        return tree.grow_root(root, tokens.reshape(batch, k), log_probs.reshape(batch, k))

    def grow_level(
        self, pool: Pool, beam: Beam, tokens: Tensor, log_probs: Tensor
    ) -> tuple[Pool, Beam, Tensor]:
        """``tree.grow_level``."""
        return tree.grow_level(pool, beam, tokens, log_probs)

    def accept_rows(
        self,
        tokens: Tensor,
        parents: Tensor,
        depths: Tensor,
        valid: Tensor,
        ancestors: Tensor,
        choices: Tensor,
        active: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``accept.accept``."""
        return accept.accept(tokens, parents, depths, valid, ancestors, choices, active)

    def moves(self, path: Tensor, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """``accept.path_slots`` in this cache."""
        return accept.path_slots(path, count, start, self.slots - 1)

    def pick(self, x: Tensor, which: Tensor) -> Tensor:
        """Rows of each sequence: ``[B, R, E]`` by ``[B, N]`` int32 in ``[0, R) -> [B, N, E]``."""
        batch, length, width = x.shape
        first = ops.arange(batch).astype(ms.int32).reshape(batch, 1) * length
        picked = ops.gather(x.reshape(batch * length, width), (which + first).reshape(which.size), 0)
        return picked.reshape(batch, which.shape[1], width)

    def last_row(self, x: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Row ``count - 1`` of ``[B, R, E]``, or ``state`` ``[B, E]`` where ``count`` ``[B]`` is 0."""
        batch, _, width = x.shape
        some = count > 0
        last = ops.select(some, count - 1, ops.zeros_like(count)).reshape(batch, 1)
        newest = self.pick(x, last).reshape(batch, width)
        return ops.select(ops.broadcast_to(some.reshape(batch, 1), newest.shape), newest, state)

    def report(self, count: Tensor, fault: Tensor, broken: Tensor, start: Tensor, emitted: Tensor) -> Tensor:
        """What the host reads after a cycle.

        Args:
            count: ``[B]`` int32, tokens emitted.
            fault: ``[B]`` bool, the teacher's logits are not finite.
            broken: ``[B]`` bool, the drafter's; of no account where ``start`` ``[B]`` is 0.
            emitted: ``[B, T]`` int32.

        Returns:
            ``[B, 2 + T]`` int32: count, fault code, tokens.
        """
        batch = count.shape[0]
        code = ops.logical_and(broken, start > 0).astype(ms.int32) * DRAFTER_NOT_FINITE
        code = ops.select(fault, ops.full_like(code, TEACHER_NOT_FINITE), code)
        return ops.cat((count.reshape(batch, 1), code.reshape(batch, 1), emitted), 1)


class Tensorizer(nn.Cell):
    """Lays out the best candidates of a pool as the rows of a tree batch."""

    def __init__(self, shape: TreeShape, log_confidence: float, slots: int) -> None:
        """``log_confidence``: see ``tensorize``; ``slots``: S of the teacher's cache."""
        super().__init__()
        self.budget, self.depth, self.slots = shape.budget, shape.depth, slots
        self.log_confidence = Tensor([log_confidence], ms.float32)

    def construct(
        self,
        tokens: Tensor,
        scores: Tensor,
        parents: Tensor,
        depths: Tensor,
        n: Tensor,
        active: Tensor,
    ) -> tuple[Tree, Rows, Tensor]:
        """Lay out.

        Args:
            tokens, scores, parents, depths: ``tree.Pool``, ``[B, P]`` each.
            n: ``[B]`` int32, the committed length.
            active: ``[B]`` bool.

        Returns:
            the tree, its rows, and the tokens along each row's path, ``[B, D+1, N]``.
        """
        tokens, parents, depths, laid, ancestors, scores = tensorize(
            (tokens, scores, parents, depths), self.budget, self.depth, self.log_confidence
        )
        valid = usable_rows(laid, n, active)
        places, slots, mask, paths = rows_of_tree(tokens, depths, valid, ancestors, n, self.slots)
        return (tokens, parents, depths, laid, valid, scores, ancestors), (places, slots, mask), paths


def usable_rows(valid: Tensor, n: Tensor, active: Tensor) -> Tensor:
    """Rows that take part, ``[B, N]`` bool: none of an idle sequence, only the root where ``n`` is 0.

    With ``n = 0`` (a prompt of one token) the drafter has seen nothing: its state is not a proposal.
    """
    batch, rows = valid.shape
    is_root = (ops.arange(rows) == 0).reshape(1, rows)
    drafted = ops.logical_and(valid, (n > 0).reshape(batch, 1))
    return ops.logical_and(ops.logical_or(drafted, is_root), active.reshape(batch, 1))


def rows_of_tree(
    tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, n: Tensor, slots: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``StockSteps.tree_rows`` as a pure function."""
    batch, levels, rows = ancestors.shape
    paths = ops.gather_d(tokens, 1, ancestors.reshape(batch, levels * rows)).reshape(batch, levels, rows)
    return (
        masks.positions(n, depths),
        masks.row_slots(n, valid, slots - 1),
        masks.tree_mask(n, ancestors, valid, slots),
        paths,
    )


def mask_of(seen: np.ndarray, slots: int) -> np.ndarray:
    """What rows see as a mask ``[B, 1, N, S]`` bool, True = discard, whichever of the two forms it has."""
    if seen.dtype == np.bool_:
        return seen
    batch, rows, _ = seen.shape
    mask = np.ones((batch, 1, rows, slots), bool)
    for b, r in np.ndindex(batch, rows):
        prefix, count = seen[b, r, :2]
        mask[b, 0, r, :prefix] = False
        mask[b, 0, r, seen[b, r, 2 : 2 + count]] = False
    return mask
