"""Reference mode: the Cells of performance mode, stage by stage, with every invariant checked in between.

``ReferenceGraphs`` takes the place of the graphs it is made from, for the same tokens: it runs the same
functions over the same weights and caches, cut where the cycle's stages meet. After each stage the host
reads what the stage produced, checks it (docs/architecture.md, "Invariants"), and keeps it for a trace.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.backends.stock_steps import mask_of
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.stages import StagedCycle, StagedGraphs
from ms_eagle.models.stage import Stage
from ms_eagle.reference import invariants
from ms_eagle.reference.cache_watch import CacheWatch
from ms_eagle.reference.checks import Checks, numpy_of


class ReferencePrefill:
    """Reads a chunk like the Cell it is made from, and checks rows, masks and cache writes."""

    def __init__(self, graphs: Graphs, watches: Sequence[CacheWatch], shared: Sequence[nn.Cell]) -> None:
        """``shared``: the stages' Cells, whose graphs are counted here, once."""
        self._cell, self._watches = graphs.prefill(), watches
        self._vocabulary, self._positions = graphs.facts.vocab_size, graphs.facts.positions
        self._rows = Stage(graphs.teacher.steps.chunk_rows)
        self._cells = (self._cell, self._rows, *shared)

    @property
    def compile_cache(self) -> list[object]:
        """Keys of all graphs that the stages compiled; its length counts them, as for a Cell."""
        return [key for cell in self._cells for key in cell.compile_cache]

    def __call__(self, window: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """See ``prefill.Prefill``.

        Raises:
            InvariantError: an index out of range, a wrong mask, or a cache write outside the chunk's slots.
        """
        invariants.check_indices("prefill tokens", window.asnumpy(), self._vocabulary)
        begin, length = start.asnumpy(), count.asnumpy()
        chunk = window.shape[1] - 1
        tokens = Tensor(window.asnumpy()[:, :chunk].copy())
        places, slots, seen = numpy_of(self._rows(tokens, start, count))
        teacher = self._watches[0]
        invariants.check_indices("prefill slots", slots, teacher.slots)
        invariants.check_indices("prefill positions", places, self._positions)
        chain = np.tile(np.maximum(np.arange(chunk) - 1, 0), (len(begin), 1))
        valid = np.arange(chunk) < length[:, None]
        invariants.check_tree_mask(mask_of(seen, teacher.slots), begin, chain, valid)  # a tree of one path
        for watch in self._watches:
            watch.look()
        state = self._cell(window, start, count, state)
        for watch in self._watches:  # a drafter's row has the slot of the position it pairs with
            landing = np.where(slots == teacher.cache.trash, watch.cache.trash, slots)
            watch.check_writes(begin, landing)
        return state


class ReferenceGraphs(StagedGraphs):
    """The graphs of reference mode.

    Attributes:
        watches: of the teacher's cache and, if there is one, the drafter's.
        checks: between the stages.
    """

    def __init__(self, graphs: Graphs) -> None:
        """Put checked stages in the place of the Cells of ``graphs``, whose attention should be eager."""
        caches = graphs.drafter.caches()
        names = ["drafter"] if len(caches) == 1 else [f"drafter {i}" for i in range(len(caches))]
        self.watches = [
            CacheWatch("teacher", graphs.teacher.cache),
            *(CacheWatch(name, cache) for name, cache in zip(names, caches, strict=True)),
        ]
        facts = graphs.facts
        self.checks = Checks(facts.vocab_size, facts.positions, facts.sizes.draft_positions, self.watches)
        super().__init__(graphs, "reference", self.checks)
        shared = [cell for each in self.stages.values() for cell in each.cells]
        self._prefill = ReferencePrefill(graphs, self.watches, shared)

    def prefill(self) -> ReferencePrefill:
        """What reads a chunk."""
        return self._prefill

    def running(self) -> StagedCycle | None:
        """The cycle that an error has ended; None where none is under way."""
        return next((cycle for cycle in self.cycles.values() if not cycle.complete), None)

    def alone(self) -> "ReferenceGraphs":
        """See ``engine.graphs.Graphs``."""
        return ReferenceGraphs(self.performance.alone())
