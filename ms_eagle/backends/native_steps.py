"""The steps of a cycle as CPU kernels, one each."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from typing_extensions import override

from ms_eagle.kernels.operators import Operators
from ms_eagle.models.backend import Steps
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import Tree

_POOL, _BEAM = 4, 9  # where pool and beam end among the results of growth


class NativeSteps(nn.Cell, Steps):
    """The steps over a cache of ``slots`` slots per sequence."""

    def __init__(self, operators: Operators, slots: int) -> None:
        super().__init__()
        self.operators, self.slots = operators, slots
        self.trash = Tensor(np.array([slots - 1], np.int32))
        self.run_level, self.run_tree = operators.level_rows(), operators.tree_rows()
        self.run_chunk = operators.chunk_rows()
        self.run_root, self.run_grow = operators.grow_root(), operators.grow_level()
        self.run_accept, self.run_moves = operators.accept(), operators.path_slots()
        self.run_pick, self.run_last = operators.pick(), operators.last_row()
        self.run_report = operators.report()

    @override
    def tensorizer(self, shape: TreeShape, log_confidence: float) -> nn.Cell:
        return NativeTensorizer(self.operators, shape, log_confidence, self.slots)

    @override
    def chunk_rows(self, tokens: Tensor, start: Tensor, count: Tensor) -> Rows:
        return self.run_chunk(tokens, start, count, self.trash)

    @override
    def level_rows(self, start: Tensor, active: Tensor, lineage: Tensor) -> Rows:
        return self.run_level(start, active, lineage, self.trash)

    @override
    def tree_rows(
        self, tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.run_tree(tokens, depths, valid, ancestors, start, self.trash)

    @override
    def grow_root(self, root: Tensor, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
        grown = self.run_root(root, tokens, log_probs)
        return grown[:_POOL], grown[_POOL:_BEAM], grown[_BEAM]

    @override
    def grow_level(
        self, pool: Pool, beam: Beam, tokens: Tensor, log_probs: Tensor
    ) -> tuple[Pool, Beam, Tensor]:
        _, beam_scores, beam_nodes, _, lineage = beam
        grown = self.run_grow(*pool, beam_scores, beam_nodes, lineage, tokens, log_probs)
        return grown[:_POOL], grown[_POOL:_BEAM], grown[_BEAM]

    @override
    def accept(self, tree: Tree, choices: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens, parents, depths, _, valid, _, ancestors = tree
        return self.run_accept(tokens, parents, depths, valid, ancestors, choices, active)

    @override
    def moves(self, path: Tensor, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return self.run_moves(path, count, start, self.trash)

    @override
    def pick(self, x: Tensor, which: Tensor) -> Tensor:
        return self.run_pick(x, which)

    @override
    def last_row(self, x: Tensor, count: Tensor, state: Tensor) -> Tensor:
        return self.run_last(x, count, state)

    @override
    def report(self, count: Tensor, fault: Tensor, broken: Tensor, start: Tensor, emitted: Tensor) -> Tensor:
        return self.run_report(count, fault, broken, start, emitted)


class NativeTensorizer(nn.Cell):
    """Lays out the best candidates of a pool as the rows of a tree batch."""

    def __init__(self, operators: Operators, shape: TreeShape, log_confidence: float, slots: int) -> None:
        super().__init__()
        self.log_confidence = Tensor([log_confidence], ms.float32)
        self.trash = Tensor(np.array([slots - 1], np.int32))
        self.run = operators.lay_tree(shape.rows, shape.depth)

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
        pool = (tokens, scores, parents, depths)
        laid = self.run(*pool, self.log_confidence, n, active, self.trash)
        return laid[:7], laid[7:10], laid[10]
