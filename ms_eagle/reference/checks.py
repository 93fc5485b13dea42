"""The checks between the stages of a cycle: what reference mode hangs into ``cycle.stages``."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from ms_eagle.backends.stock_steps import Rows, Tree, mask_of
from ms_eagle.cycle.stages import StagedCycle
from ms_eagle.reference import invariants
from ms_eagle.reference.cache_watch import CacheWatch
from ms_eagle.reference.pool_invariants import check_beam, check_pool, check_selection
from ms_eagle.tree.growth import Pool


def numpy_of(tensors: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    """Read several tensors back."""
    return tuple(tensor.asnumpy() for tensor in tensors)


class Checks:
    """Reads what each stage made, checks it, and keeps it for a trace (``stages.Hook``).

    Attributes:
        arrays: of the cycle that runs, or ran last, by name: ``root, n, active``; ``tokens, parents, depths,
            scores, valid`` of the tree; ``choices, path, accepted, emitted, count``. Those of stages that
            have not run are missing.
    """

    def __init__(
        self, vocab_size: int, positions: int, draft_positions: int, watches: Sequence[CacheWatch]
    ) -> None:
        """Take what indices are checked against.

        Args:
            vocab_size: V.
            positions: that the teacher's rotary tables cover; draft_positions: that the drafter's do.
            watches: of the teacher's cache and, if there is one, the drafter's.
        """
        self.arrays: dict[str, np.ndarray] = {}
        self._vocabulary, self._positions, self._draft_positions = vocab_size, positions, draft_positions
        self._watches = watches
        self._teacher, self._drafter = watches[0], watches[-1]
        self._log_confidence = 0.0

    def begun(self, cycle: StagedCycle, root: Tensor, n: Tensor, active: Tensor) -> None:
        """Roots and lengths are in range; remember what the caches hold."""
        names = ("root", "n", "active")
        self.arrays = dict(zip(names, numpy_of((root, n, active)), strict=True))
        self._log_confidence = cycle.stages.log_confidence
        invariants.check_indices("roots", self.arrays["root"], self._vocabulary)
        invariants.check_indices("committed lengths", self.arrays["n"], self._teacher.slots)
        for watch in self._watches:
            watch.look()

    def rows(self, rows: Rows, n: Tensor, lineage: Tensor | None) -> None:
        """Positions, slots and mask of a drafter's forward are right."""
        length = self.arrays["n"]
        places, slots, seen = numpy_of(rows)
        invariants.check_indices("drafter positions", places, self._draft_positions)
        invariants.check_indices("drafter slots", slots, self._drafter.slots)
        mask = mask_of(seen, self._drafter.slots)
        if lineage is not None:
            invariants.check_level_mask(mask, length, length, lineage.asnumpy())
            return
        valid = np.arange(slots.shape[1]) < self.arrays["count"][:, None]
        chain = np.tile(np.maximum(np.arange(slots.shape[1]) - 1, 0), (len(length), 1))
        invariants.check_tree_mask(mask, length, chain, valid)

    def written(self, rows: Rows, n: Tensor) -> None:
        """The drafter wrote where it was told, and nowhere else."""
        self._drafter.check_writes(self.arrays["n"], rows[1].asnumpy())

    def grown(self, pool: Pool, beam: Sequence[Tensor], parents: int) -> None:
        """Pool and beam are sound."""
        known = numpy_of(pool)
        check_pool(known, self._vocabulary)
        check_beam(numpy_of(beam), known, parents)

    def laid(self, pool: Pool | None, tree: Tree, rows: Rows, paths: Tensor) -> None:
        """The tree holds the best of the pool, closed under parent, and its rows see their ancestors."""
        tokens, parents, depths, laid, valid, scores, ancestors = numpy_of(tree)
        length, active = self.arrays["n"], self.arrays["active"]
        self.arrays |= {"tokens": tokens, "parents": parents, "depths": depths}
        self.arrays |= {"scores": scores, "valid": valid}
        invariants.check_tree(tokens, parents, depths, laid, self._vocabulary)
        invariants.check_ancestors(ancestors, parents)
        first = np.arange(tokens.shape[1]) == 0
        usable = ((laid & (length > 0)[:, None]) | first) & active[:, None]
        wrong = np.argwhere(valid != usable)
        if len(wrong):
            where = f"batch {wrong[0][0]}, row {wrong[0][1]}"
            state = f"valid {valid[tuple(wrong[0])]}"
            raise invariants.InvariantError("tree.usable", state, where, "idle rows alone to be left out")
        places, slots, seen = numpy_of(rows)
        invariants.check_tree_mask(mask_of(seen, self._teacher.slots), length, parents, valid)
        invariants.check_indices("positions", places, self._positions)
        invariants.check_indices("slots", slots, self._teacher.slots)
        invariants.check_indices("path tokens", paths.asnumpy(), self._vocabulary)
        invariants.check_indices("positions of uniforms", places + 1, self._positions)
        if pool is not None:
            known = numpy_of(pool)
            check_pool(known, self._vocabulary)
            check_selection(known, (tokens, parents, depths, laid, scores), self._log_confidence)

    def verified(self, choices: Tensor, rows: Rows) -> None:
        """The teacher chose tokens of its vocabulary and wrote the tree's rows only."""
        self.arrays["choices"] = choices.asnumpy()
        invariants.check_indices("choices", self.arrays["choices"], self._vocabulary)
        self._teacher.check_writes(self.arrays["n"], rows[1].asnumpy())

    def accepted(self, accepted: Tensor, path: Tensor, emitted: Tensor, count: Tensor) -> None:
        """The path is the longest chain of matches."""
        names = ("accepted", "path", "emitted", "count")
        arrays = self.arrays
        arrays |= zip(names, numpy_of((accepted, path, emitted, count)), strict=True)
        tree = (arrays[name] for name in ("tokens", "parents", "valid", "choices", "emitted"))
        invariants.check_path(arrays["path"], arrays["count"], *tree)
        counts = np.where(arrays["active"], arrays["accepted"] + 1, 0)
        if not np.array_equal(arrays["count"], counts):
            raise invariants.InvariantError("path.count", arrays["count"], "the batch", f"{counts}")

    def moves(self, sources: Tensor, targets: Tensor) -> None:
        """Rows move between slots that there are."""
        self._moves = numpy_of((sources, targets))
        invariants.check_indices("commit sources", self._moves[0], self._teacher.slots)
        invariants.check_indices("commit targets", self._moves[1], self._teacher.slots)

    def moved(self) -> None:
        """They arrived, and nothing else moved."""
        self._teacher.check_moves(*self._moves, self.arrays["count"])
