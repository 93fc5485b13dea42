"""The steps of a cycle from the pure functions of ``tree``: the readable reference, for every device."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from typing_extensions import override

from ms_eagle.models.backend import Steps
from ms_eagle.tree import accept as acceptance
from ms_eagle.tree import growth, masks
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.report import DRAFTER_NOT_FINITE, TEACHER_NOT_FINITE
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import Tree, tensorize


class StockSteps(nn.Cell, Steps):
    """The steps over a cache of ``slots`` slots per sequence."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    @override
    def tensorizer(self, shape: TreeShape, log_confidence: float) -> nn.Cell:
        return Tensorizer(shape, log_confidence, self.slots)

    @override
    def chunk_rows(self, tokens: Tensor, start: Tensor, count: Tensor) -> Rows:
        return masks.chunk_rows(start, count, tokens.shape[1], self.slots)

    @override
    def level_rows(self, start: Tensor, active: Tensor, lineage: Tensor) -> Rows:
        batch, levels, branch = lineage.shape
        slots = masks.level_slots(start, levels - 1, branch)
        landing = ops.select(
            ops.broadcast_to(active.reshape(batch, 1), slots.shape),
            slots,
            ops.full_like(slots, self.slots - 1),
        )
        places = ops.broadcast_to((start + (levels - 1)).reshape(batch, 1), (batch, branch))
        return places, landing, masks.level_mask(start, lineage, self.slots)

    @override
    def tree_rows(
        self, tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return rows_of_tree(tokens, depths, valid, ancestors, start, self.slots)

    @override
    def grow_root(self, root: Tensor, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
        batch, _, k = tokens.shape
        return growth.grow_root(root, tokens.reshape(batch, k), log_probs.reshape(batch, k))

    @override
    def grow_level(
        self, pool: Pool, beam: Beam, tokens: Tensor, log_probs: Tensor
    ) -> tuple[Pool, Beam, Tensor]:
        return growth.grow_level(pool, beam, tokens, log_probs)

    @override
    def accept(self, tree: Tree, choices: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return acceptance.accept(tree, choices, active)

    @override
    def moves(self, path: Tensor, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return acceptance.path_slots(path, count, start, self.slots - 1)

    @override
    def pick(self, x: Tensor, which: Tensor) -> Tensor:
        batch, length, width = x.shape
        first = ops.arange(batch).astype(ms.int32).reshape(batch, 1) * length
        picked = ops.gather(x.reshape(batch * length, width), (which + first).reshape(which.size), 0)
        return picked.reshape(batch, which.shape[1], width)

    @override
    def last_row(self, x: Tensor, count: Tensor, state: Tensor) -> Tensor:
        batch, _, width = x.shape
        some = count > 0
        last = ops.select(some, count - 1, ops.zeros_like(count)).reshape(batch, 1)
        newest = self.pick(x, last).reshape(batch, width)
        return ops.select(ops.broadcast_to(some.reshape(batch, 1), newest.shape), newest, state)

    @override
    def report(self, count: Tensor, fault: Tensor, broken: Tensor, start: Tensor, emitted: Tensor) -> Tensor:
        batch = count.shape[0]
        code = ops.logical_and(broken, start > 0).astype(ms.int32) * DRAFTER_NOT_FINITE
        code = ops.select(fault, ops.full_like(code, TEACHER_NOT_FINITE), code)
        return ops.cat((count.reshape(batch, 1), code.reshape(batch, 1), emitted), 1)


class Tensorizer(nn.Cell):
    """Lays out the best candidates of a pool as the rows of a tree batch."""

    def __init__(self, shape: TreeShape, log_confidence: float, slots: int) -> None:
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
        """``Steps.tensorizer`` says what of."""
        tokens, parents, depths, laid, ancestors, scores = tensorize(
            (tokens, scores, parents, depths), self.budget, self.depth, self.log_confidence
        )
        valid = usable_rows(laid, n, active)
        places, slots, mask, paths = rows_of_tree(tokens, depths, valid, ancestors, n, self.slots)
        tree = (tokens, parents, depths, laid, valid, scores, ancestors)
        return tree, (places, slots, mask), paths


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
