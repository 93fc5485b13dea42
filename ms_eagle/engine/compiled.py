"""Which graphs are compiled already, and how the others come to be."""

import contextlib
import time

import numpy as np
from mindspore import Tensor

from ms_eagle.engine.compile_cache import CompileCache
from ms_eagle.engine.controls import Controls
from ms_eagle.engine.graphs import Graphs
from ms_eagle.tree.shape import Tier


class Compiled:
    """Compiles graphs when they are first needed.

    Attributes:
        seconds: time spent so far.
    """

    def __init__(self, graphs: Graphs, controls: Controls, cache: CompileCache | None) -> None:
        """``cache``: keeps the first graphs for the next process; None keeps nothing."""
        self.seconds = 0.0
        self._graphs, self._controls, self._cache = graphs, controls, cache
        self._ready: set[tuple[Tier, bool]] = set()

    @property
    def count(self) -> int:
        """How many graphs have been compiled so far; constant after warm-up."""
        cells = [self._graphs.prefill(), *(self._graphs.cycle(*key) for key in self._ready)]
        return sum(len(cell.compile_cache) for cell in cells)

    def warm_up(self, sampled: bool) -> None:
        """Compile what answers take: the first tier, and plain decoding for cycles without proposals."""
        graphs, sizes = self._graphs, self._graphs.facts.sizes
        usual, nothing = sizes.tiers[0], [[] for _ in range(sizes.batch)]
        resting = graphs.tier_for(usual, graphs.hints(usual, nothing, nothing))
        for tier in dict.fromkeys((usual, resting)):
            self.need(tier, sampled)

    def need(self, tier: Tier, sampled: bool) -> None:
        """Compile the cycle of a tier, and the prefill, and run them once on idle sequences."""
        if (tier, sampled) in self._ready:
            return
        begin = time.perf_counter()
        first = self._cache is not None and not self._ready
        with self._cache.start("sampled" if sampled else "greedy") if first else contextlib.nullcontext():
            self._run_idle(tier, sampled)
        self._ready.add((tier, sampled))
        self.seconds += time.perf_counter() - begin

    def _run_idle(self, tier: Tier, sampled: bool) -> None:
        """Call both graphs for sequences that take no part: only the trash slots change."""
        sizes = self._graphs.facts.sizes
        idle = Tensor(np.zeros(sizes.batch, np.int32))
        window = Tensor(np.zeros((sizes.batch, sizes.chunk + 1), np.int32))
        state = self._graphs.prefill()(window, idle, idle, self._graphs.empty())
        asleep = Tensor(np.zeros(sizes.batch, bool))
        nothing: list[list[int]] = [[] for _ in range(sizes.batch)]
        hints = (Tensor(hint) for hint in self._graphs.hints(tier, nothing, nothing))
        cycle = self._graphs.cycle(tier, sampled)
        report, _ = cycle(idle, idle, asleep, *self._controls.tensors(), state, *hints)
        report.asnumpy()
