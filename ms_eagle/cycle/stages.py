"""A cycle stage by stage, each stage compiled alone: what reference mode and profiles run.

Every stage calls the functions that the one graph of ``cycle`` is made of. A hook sees what each stage made
before the next one runs, and may refuse it. The stages' sum is more than a cycle of one graph takes: every
stage is entered by the host, which waits for it to end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.cycle.cycle import PlainCycle, TreeCycle, root_alone
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.drafters.base import Watch
from ms_eagle.models.backend import Steps
from ms_eagle.models.stage import Stage
from ms_eagle.tree.growth import Pool
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.shape import Tier
from ms_eagle.tree.tensorize import Tree

STAGES = ("draft", "tensorize", "verify", "accept", "commit", "extend", "host")


class Stopwatch:
    """Wall time by stage, the device's work included.

    Attributes:
        seconds: by stage, since the last restart.
        stage: the stage that runs, or ran last.
    """

    def __init__(self) -> None:
        self.restart(None)

    def restart(self, host: float | None) -> None:
        """Begin a cycle; ``host``: seconds since the last one, where there was one."""
        self.seconds: dict[str, float] = {} if host is None else {"host": host}
        self.stage = "host"

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside, but for that of an inner ``apart``, to ``stage``."""
        self.stage = stage
        begin, before = time.perf_counter(), self.seconds.get("checks", 0.0)
        try:
            yield
            ms.runtime.synchronize()
        finally:
            spent = time.perf_counter() - begin - (self.seconds.get("checks", 0.0) - before)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Add the time spent inside to ``checks``."""
        ms.runtime.synchronize()  # what came before belongs to its stage
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds["checks"] = self.seconds.get("checks", 0.0) + time.perf_counter() - begin


class Hook(Watch, Protocol):
    """Sees what the stages of a cycle make; what it raises ends the cycle."""

    def begun(self, cycle: "StagedCycle", root: Tensor, n: Tensor, active: Tensor) -> None:
        """A cycle begins."""

    def laid(self, pool: Pool | None, tree: Tree, rows: Rows, paths: Tensor) -> None:
        """The tree is laid out; ``pool`` is None in plain decoding."""

    def verified(self, choices: Tensor, rows: Rows) -> None:
        """The teacher has chosen a token after every row."""

    def accepted(self, accepted: Tensor, path: Tensor, emitted: Tensor, count: Tensor) -> None:
        """It is known how far the tree was right."""

    def moves(self, sources: Tensor, targets: Tensor) -> None:
        """Accepted rows are about to move between these slots of the teacher's cache."""

    def moved(self) -> None:
        """They have moved."""


class CycleStages:
    """The stages of one tier that do not depend on how tokens are chosen: greedy and sampled share them."""

    def __init__(self, cell: PlainCycle | TreeCycle) -> None:
        steps: Steps = cell.steps
        self.drafter = cell.drafter.stages()
        self.accept, self.moves = _Accept(steps), Stage(steps.moves)
        self.pick, self.report = Stage(steps.pick), Stage(steps.report)
        self.drafts, self.log_confidence = isinstance(cell, TreeCycle), 0.0
        if isinstance(cell, TreeCycle):
            self.tensorize, self.commit = cell.tensorize, cell.reorder
            self.log_confidence = float(cell.tensorize.log_confidence.asnumpy()[0])
        else:
            self.tensorize, self.commit = _RootAlone(steps), None
        self.cells = tuple(
            cell
            for cell in (self.accept, self.moves, self.pick, self.report, self.tensorize, self.commit)
            if cell is not None
        ) + tuple(self.drafter.cells)


class _RootAlone(nn.Cell):
    """In the place of a tensorizer in plain decoding."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def construct(self, root: Tensor, n: Tensor, active: Tensor) -> tuple[Tree, Rows, Tensor]:
        return root_alone(self.steps, root, n, active)


class _Accept(nn.Cell):
    """``Steps.accept`` with the tensors of the tree one by one."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def construct(self, choices: Tensor, active: Tensor, *tree: Tensor) -> tuple[Tensor, ...]:
        return self.steps.accept(tree, choices, active)


class StagedCycle:
    """Runs a cycle like the Cell it is made from, stage by stage.

    Attributes:
        watch: times of the cycle that runs, or ran last.
        controls: sampling numbers and uniforms of that cycle.
        complete: whether it came to its end.
        stages: shared with other cycles of the tier.
        cells: the Cells of this one.
        after: called with this object at the end of every cycle, unless None.
    """

    def __init__(self, cell: PlainCycle | TreeCycle, stages: CycleStages, hook: Hook | None = None) -> None:
        self.stages, self.hook = stages, hook
        self.watch, self.complete = Stopwatch(), True
        self.after: Callable[[StagedCycle], None] | None = None
        self.controls: tuple[Tensor, Tensor] | None = None
        self._verify, self._remember = cell.verifier, Stage(cell.verifier.choose.remember)
        self.cells = (self._verify, self._remember)
        self._ended: float | None = None

    @property
    def compile_cache(self) -> list[object]:
        """Keys of all graphs that the stages compiled; its length counts them, as for a Cell."""
        return [key for cell in (*self.cells, *self.stages.cells) for key in cell.compile_cache]

    def restart(self) -> None:
        """The next cycle is the first of a request: no host time lies before it, nor one that failed."""
        self._ended, self.complete = None, True

    def __call__(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        params: Tensor,
        uniforms: Tensor,
        state: Tensor,
        *hints: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are those of ``cycle``.

        Every stage ends with the read of a small result, so that its work is done on any device.
        """
        stages, timed = self.stages, self.watch.timed
        self.watch.restart(None if self._ended is None else time.perf_counter() - self._ended)
        self.complete, self.controls = False, (params, uniforms)
        self._tell("begun", self, root, n, active)
        pool, broken = self._draft(root, n, active, state, hints)
        with timed("tensorize"):
            tree, rows, paths = stages.tensorize(*((root,) if pool is None else pool), n, active)
            tree[0].asnumpy()
        self._tell("laid", pool, tree, rows, paths)
        with timed("verify"):
            choices, taps, fault = self._verify(tree[0], *rows, paths, params, uniforms)
            choices.asnumpy()
        self._tell("verified", choices, rows)
        with timed("accept"):
            accepted, path, emitted, count = stages.accept(choices, active, *tree)
            count.asnumpy()
        self._tell("accepted", accepted, path, emitted, count)
        if stages.commit is not None:
            self._commit(path, count, n)
        with timed("extend"):
            followed = taps if pool is None else stages.pick(taps, path)
            state = stages.drafter.take(followed, emitted, n, count, state, self._watch())
            state.asnumpy()
        with timed("accept"):
            emitted = self._remember(emitted, count)
            report = stages.report(count, fault, broken, n, emitted)
            report.asnumpy()
        self.complete = True
        if self.after is not None:
            self.after(self)
        self._ended = time.perf_counter()
        return report, state

    def _draft(
        self, root: Tensor, n: Tensor, active: Tensor, state: Tensor, hints: tuple[Tensor, ...]
    ) -> tuple[Pool | None, Tensor]:
        """The pool of candidates, and whether any logit was NaN; no pool in plain decoding."""
        if not self.stages.drafts:
            return None, Tensor(np.zeros(root.shape, np.bool_))
        with self.watch.timed("draft"):
            pool, broken = self.stages.drafter.propose(root, n, active, state, hints, self._watch())
            broken.asnumpy()
        return pool, broken

    def _commit(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        if self.hook is not None:
            with self.watch.timed("commit"):
                sources, targets = self.stages.moves(path, count, n)
            self._tell("moves", sources, targets)
        with self.watch.timed("commit"):
            self.stages.commit(path, count, n)
        self._tell("moved")

    def _tell(self, event: str, *values: object) -> None:
        if self.hook is not None:
            with self.watch.apart():
                getattr(self.hook, event)(*values)

    def _watch(self) -> Watch | None:
        return None if self.hook is None else _Apart(self.hook, self.watch)


class _Apart:
    """A hook whose time inside a stage is not the stage's."""

    def __init__(self, hook: Watch, watch: Stopwatch) -> None:
        self._hook, self._watch = hook, watch

    def rows(self, rows: Rows, n: Tensor, lineage: Tensor | None) -> None:
        with self._watch.apart():
            self._hook.rows(rows, n, lineage)

    def written(self, rows: Rows, n: Tensor) -> None:
        with self._watch.apart():
            self._hook.written(rows, n)

    def grown(self, pool: Pool, beam: Sequence[Tensor], parents: int) -> None:
        with self._watch.apart():
            self._hook.grown(pool, beam, parents)


class StagedGraphs:
    """Graphs whose cycles run stage by stage; the protocol is ``engine.graphs.Graphs``.

    Attributes:
        performance: the graphs it is made from.
        facts: theirs, but for the mode.
    """

    def __init__(self, graphs: Graphs, mode: str, hook: Hook | None = None) -> None:
        """Put stages in the place of the cycles of ``graphs``.

        Args:
            graphs: of performance mode.
            mode: its name, for reports.
            hook: of every cycle.
        """
        self.performance, self.facts = graphs, replace(graphs.facts, mode=mode)
        tiers = graphs.facts.sizes.tiers
        self.stages = {tier: CycleStages(graphs.cycle(tier, False)) for tier in tiers}
        self.cycles = {
            (tier, sampled): StagedCycle(graphs.cycle(tier, sampled), self.stages[tier], hook)
            for tier in tiers
            for sampled in (False, True)
        }

    def follow(self, after: Callable[[StagedCycle], None]) -> None:
        """Call ``after`` at the end of every cycle from now on."""
        for cycle in self.cycles.values():
            cycle.after = after

    def restart(self) -> None:
        """The next cycle is the first of a request: no host time lies before it."""
        for cycle in self.cycles.values():
            cycle.restart()

    def prefill(self) -> nn.Cell:
        """See ``engine.graphs.Graphs``."""
        return self.performance.prefill()

    def cycle(self, tier: Tier, sampled: bool) -> StagedCycle:
        """See ``engine.graphs.Graphs``."""
        return self.cycles[tier, sampled]

    def empty(self) -> Tensor:
        """See ``engine.graphs.Graphs``."""
        return self.performance.empty()

    def hints(
        self, tier: Tier, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """See ``engine.graphs.Graphs``."""
        return self.performance.hints(tier, sequences, scripts)

    def tier_for(self, tier: Tier, hints: Sequence[np.ndarray]) -> Tier:
        """The tier itself: a stage that has nothing to do is shown and checked, too."""
        return tier

    def clear(self) -> None:
        """See ``engine.graphs.Graphs``."""
        self.performance.clear()

    def see(self, sequences: Sequence[Sequence[int]]) -> None:
        """See ``engine.graphs.Graphs``."""
        self.performance.see(sequences)

    def alone(self) -> "StagedGraphs":
        """See ``engine.graphs.Graphs``."""
        return StagedGraphs(self.performance.alone(), self.facts.mode)
