"""Reference mode: the Cells of performance mode, stage by stage, with every invariant checked in between.

``ReferenceGraphs`` takes the place of the graphs it is made from, for the same tokens: it runs the same
functions over the same weights and caches, cut where the cycle's stages meet. After each stage the host
reads what the stage produced, checks it (DESIGN.md, "Invariants"), and keeps it for a trace.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.backends.stock_steps import mask_of
from ms_eagle.cycle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.cycle.stages import ChunkRows, Stages
from ms_eagle.engine.observer import Observer
from ms_eagle.reference import invariants
from ms_eagle.reference.cache_watch import CacheWatch
from ms_eagle.reference.cycle import ReferenceCycle, Staged, numpy_of


class ReferencePrefill(Staged):
    """Reads a chunk like the Cell it is made from, and checks rows, masks and cache writes."""

    def __init__(
        self, cell: nn.Cell, graphs: TeacherGraphs, stages: Stages, watches: Sequence[CacheWatch]
    ) -> None:
        """``watches`` are those of the teacher's cache and, if there is one, the drafter's.

        ``stages`` are what the cycles share: their graphs are counted here, once.
        """
        self._cell, self._watches, self._vocabulary = cell, watches, graphs.vocab_size
        self._positions = graphs.teacher.positions
        models = (graphs.teacher, graphs.proposer.drafter) if len(watches) > 1 else (graphs.teacher,)
        self._rows = [ChunkRows(graphs.chunk, model.steps) for model in models]
        self.cells = (cell, *self._rows, *stages.cells)

    def __call__(self, window: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """See ``prefill.TeacherPrefill``.

        Raises:
            InvariantError: an index out of range, a wrong mask, or a cache write outside the chunk's slots.
        """
        invariants.check_indices("prefill tokens", window.asnumpy(), self._vocabulary)
        begin, length = start.asnumpy(), count.asnumpy()
        chunk = window.shape[1] - 1
        chain = np.tile(np.maximum(np.arange(chunk) - 1, 0), (len(begin), 1))
        valid = np.arange(chunk) < length[:, None]
        rows = [numpy_of(cell(start, count)) for cell in self._rows]
        for watch, (places, slots, seen) in zip(self._watches, rows, strict=True):
            invariants.check_indices(f"{watch.name} prefill slots", slots, watch.slots)
            invariants.check_indices(f"{watch.name} prefill positions", places, self._positions)
            invariants.check_tree_mask(
                mask_of(seen, watch.slots), begin, chain, valid
            )  # a chunk is a tree of one path
            watch.look()
        state = self._cell(window, start, count, state)
        for watch, (_, slots, _) in zip(self._watches, rows, strict=True):
            watch.check_writes(begin, slots)
        return state


class CycleObserver(Observer, Protocol):
    """An observer that also hears of every cycle."""

    def cycled(self, cycle: ReferenceCycle) -> None:
        """A cycle is complete; ``cycle.facts`` describes it."""


class ReferenceGraphs:
    """The graphs of reference mode; the protocol is ``engine.Graphs``.

    Attributes:
        teacher, proposer: those of the graphs it is made from; proposer is None without a drafter.
        watches: of the teacher's cache and, if there is one, the drafter's.
        observer: follows the requests that an engine serves with these graphs.
    """

    mode = "reference"

    def __init__(self, graphs: TeacherGraphs) -> None:
        """Put checked stages in the place of the Cells of ``graphs``, whose attention should be eager."""
        self.batch, self.chunk, self.positions = graphs.batch, graphs.chunk, graphs.positions
        self.capacity, self.vocab_size = graphs.capacity, graphs.vocab_size
        self.drafter, self.kernels, self.teacher = graphs.drafter, graphs.kernels, graphs.teacher
        self.width, self.performance = graphs.width, graphs
        self.observer: Observer | None = None
        self.proposer = graphs.proposer if isinstance(graphs, EagleGraphs) else None
        self.watches = [CacheWatch("teacher", self.teacher.cache)]
        if self.proposer is not None:
            self.watches.append(CacheWatch("drafter", self.proposer.drafter.cache))
        stages = Stages(graphs.cycle(True))
        self._prefill = ReferencePrefill(graphs.prefill(), graphs, stages, self.watches)
        self._cycles = {
            greedy: ReferenceCycle(graphs.cycle(greedy), graphs, stages, self.watches)
            for greedy in (True, False)
        }

    def prefill(self) -> ReferencePrefill:
        """What reads a chunk."""
        return self._prefill

    def cycle(self, greedy: bool) -> ReferenceCycle:
        """What runs a cycle: argmax only, or with every sampling option."""
        return self._cycles[greedy]

    def initial_state(self) -> Tensor:
        """The state to start a request with."""
        return self.performance.initial_state()

    def clear(self) -> None:
        """See ``engine.Graphs``."""
        self.performance.clear()

    def start_request(self, sequences: Sequence[Sequence[int]]) -> None:
        """See ``engine.Graphs``."""
        self.performance.start_request(sequences)
        for cycle in self._cycles.values():
            cycle.start_request()

    def follow(self, observer: CycleObserver) -> None:
        """Tell ``observer`` of every request and every cycle from now on."""
        self.observer = observer
        for cycle in self._cycles.values():
            cycle.after = observer.cycled
