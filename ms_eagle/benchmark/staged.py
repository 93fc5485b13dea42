"""A cycle as one graph a stage, timed: where a cycle's time goes, at the cost of running it apart.

The stages are those of ``stages``, over the kernels of performance mode. Their sum is more than a cycle of
one graph takes: every stage is entered by the host, which waits for it to end.
"""

import time
from collections.abc import Sequence

from mindspore import Tensor, nn

from ms_eagle.cycle.graphs import EagleGraphs
from ms_eagle.reference.cycle import Facts, ReferenceCycle, Staged
from ms_eagle.reference.mode import ReferenceGraphs

STAGES = ("draft", "tensorize", "verify", "accept", "commit", "extend", "host")


class StagedCycle(Staged):
    """Runs the stages of a cycle one by one, without the checks of reference mode.

    Attributes:
        cells: the Cells it runs.
        seconds: of every cycle since `restart`, wall time by stage; ``host`` lies between two cycles.
    """

    def __init__(self, cycle: ReferenceCycle) -> None:
        self.stages, self._verify, self._report = cycle.stages, cycle.verify, cycle.report
        self.cells = (*cycle.stages.cells, cycle.verify, cycle.report)
        self.restart()

    def restart(self) -> None:
        """Forget all times."""
        self.seconds: list[dict[str, float]] = []
        self._ended: float | None = None

    def start_request(self) -> None:
        """No host time lies before the next cycle."""
        self._ended = None

    def __call__(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are those of ``cycle``.

        Every stage ends with the read of a small result, so that its work is done on any device.
        """
        facts, stages = Facts(), self.stages
        if self._ended is not None:
            facts.seconds["host"] = time.perf_counter() - self._ended
        with facts.timed("draft"):
            pool, beam, hidden, broken = stages.sprout(root, n, state)
            for _, level in stages.levels:
                pool, beam, hidden, broken = level(hidden, n, active, *pool, *beam)
            broken.asnumpy()
        with facts.timed("tensorize"):
            tree, rows, paths = stages.tensorize(n, active, *pool)
            tree[0].asnumpy()
        with facts.timed("verify"):
            choices, taps, fault = self._verify(tree[0], *rows, paths, params, uniforms)
            choices.asnumpy()
        with facts.timed("accept"):
            _, path, emitted, count = stages.accept(choices, active, *tree)
            count.asnumpy()
        with facts.timed("commit"):
            stages.commit(path, count, n).asnumpy()
        with facts.timed("extend"):
            state = stages.extend(taps, path, emitted, n, count, state)
            state.asnumpy()
        with facts.timed("accept"):
            report = self._report(emitted, count, n, fault, broken)
            report.asnumpy()
        self.seconds.append(facts.seconds)
        self._ended = time.perf_counter()
        return report, state


class StagedGraphs(ReferenceGraphs):
    """Speculative decoding with staged cycles; prompts are read as in performance mode."""

    mode = "profile"

    def __init__(self, graphs: EagleGraphs) -> None:
        super().__init__(graphs)
        self.staged = {
            greedy: StagedCycle(super(StagedGraphs, self).cycle(greedy)) for greedy in (True, False)
        }

    def prefill(self) -> nn.Cell:
        """The Cell of performance mode that reads a chunk."""
        return self.performance.prefill()

    def cycle(self, greedy: bool) -> StagedCycle:
        """The stages of a cycle."""
        return self.staged[greedy]

    def start_request(self, sequences: Sequence[Sequence[int]]) -> None:
        """See ``engine.Graphs``."""
        self.performance.start_request(sequences)
        for cycle in self.staged.values():
            cycle.start_request()

    def take(self) -> list[dict[str, float]]:
        """The times of all cycles since the last call, seconds by stage."""
        found = [seconds for cycle in self.staged.values() for seconds in cycle.seconds]
        for cycle in self.staged.values():
            cycle.restart()
        return found
