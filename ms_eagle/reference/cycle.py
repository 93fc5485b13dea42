"""One cycle of reference mode: the stages run one by one, and the host checks what each produced."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.backends.stock_steps import mask_of
from ms_eagle.cycle.graphs import TeacherGraphs
from ms_eagle.cycle.stages import Report, Stages
from ms_eagle.reference import invariants
from ms_eagle.reference.cache_watch import CacheWatch
from ms_eagle.reference.pool_invariants import check_beam, check_pool, check_selection


@dataclass
class Facts:
    """What one cycle has produced so far, read back from the device.

    Attributes:
        arrays: by name: ``root, n, active``; ``tokens, parents, depths, scores, valid`` of the tree;
            ``choices, path, accepted, emitted, count``; those of stages not run yet are missing.
        seconds: wall time by stage, ``host`` (since the last cycle) and ``checks``.
        stage: the stage that runs, or ran last.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stage: str = "host"

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside, the device's included, to ``stage``."""
        if stage != "checks":  # checks belong to the stage before them
            self.stage = stage
        begin = time.perf_counter()
        try:
            yield
            ms.runtime.synchronize()
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


class Staged:
    """A sequence of Cells in the place of one."""

    cells: tuple[nn.Cell, ...]

    @property
    def compile_cache(self) -> list[object]:
        """Keys of all graphs that the stages compiled; its length counts them, as for a Cell."""
        return [key for cell in self.cells for key in cell.compile_cache]


def numpy_of(tensors: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    """Read several tensors back."""
    return tuple(tensor.asnumpy() for tensor in tensors)


class ReferenceCycle(Staged):
    """One cycle like the Cell it is made from, stage by stage.

    Attributes:
        facts: of the cycle that runs, or ran last.
        controls: sampling numbers and uniforms of that cycle.
        stages, verify, report: the Cells it runs; the first are shared.
        complete: whether that cycle came to its end.
        after: called with this object at the end of every cycle, unless None.
    """

    def __init__(
        self,
        cell: nn.Cell,
        graphs: TeacherGraphs,
        stages: Stages,
        watches: Sequence[CacheWatch],
    ) -> None:
        """Make the stages' Cells.

        Args:
            cell: a ``TeacherCycle`` or an ``EagleCycle``.
            graphs: where it comes from.
            stages: made of such a Cell.
            watches: of the teacher's cache and, if there is one, the drafter's.
        """
        self.facts, self.complete = Facts(), True
        self.after: Callable[[ReferenceCycle], None] | None = None
        self.controls: tuple[Tensor, Tensor] | None = None
        self._ended: float | None = None
        self._vocabulary, self._positions = graphs.vocab_size, graphs.teacher.positions
        self._teacher, self._drafter = watches[0], watches[len(watches) - 1]
        if stages.speculates:
            self._draft_positions = cell.proposer.drafter.positions
        self.verify, self.report = cell.verifier, Report(cell.verifier.choose, cell.steps)
        self.stages, self.cells = stages, (self.verify, self.report)

    def start_request(self) -> None:
        """The next cycle is the first of a request: no host time lies before it."""
        self._ended = None
        self.facts, self.complete = Facts(), True

    def __call__(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle; arguments and results are those of ``cycle``.

        Raises:
            InvariantError: at the first violation; ``facts`` holds what had been produced.
        """
        facts = self.facts = Facts()
        self.complete = False
        self.controls = (params, uniforms)
        if self._ended is not None:
            facts.seconds["host"] = time.perf_counter() - self._ended
        facts.arrays |= {"root": root.asnumpy(), "n": n.asnumpy(), "active": active.asnumpy()}
        with facts.timed("checks"):
            invariants.check_indices("roots", facts.arrays["root"], self._vocabulary)
            invariants.check_indices("committed lengths", facts.arrays["n"], self._teacher.slots)
            self._teacher.look()
        tree, rows, paths, drafter_fault = self._grow(facts, root, n, active, state)
        choices, taps, fault = self._verified(facts, tree, rows, paths, params, uniforms)
        with facts.timed("accept"):
            accepted, path, emitted, count = self.stages.accept(choices, active, *tree)
            names = ("accepted", "path", "emitted", "count")
            facts.arrays |= zip(names, numpy_of((accepted, path, emitted, count)), strict=True)
        with facts.timed("checks"):
            self._check_accepted(facts.arrays)
        if self.stages.speculates:
            state = self._take(facts, path, count, n, taps, emitted, state)
        with facts.timed("accept"):
            report = self.report(emitted, count, n, fault, drafter_fault)
        self.complete = True
        if self.after is not None:
            self.after(self)
        self._ended = time.perf_counter()
        return report, state

    def _grow(
        self, facts: Facts, root: Tensor, n: Tensor, active: Tensor, state: Tensor
    ) -> tuple[tuple, tuple, Tensor, Tensor]:
        """The tree, its rows, the tokens along its paths and the drafter's fault."""
        if not self.stages.speculates:
            with facts.timed("tensorize"):
                tree, rows, paths = self.stages.lone(root, n, active)
            self._check_tree(facts, tree, rows, paths)
            return tree, rows, paths, Tensor(np.zeros(root.shape, np.bool_))
        pool, broken = self._draft(facts, root, n, active, state)
        with facts.timed("tensorize"):
            tree, rows, paths = self.stages.tensorize(n, active, *pool)
        self._check_tree(facts, tree, rows, paths)
        with facts.timed("checks"):
            tokens, parents, depths, laid, _, scores, _ = numpy_of(tree)
            check_selection(
                numpy_of(pool), (tokens, parents, depths, laid, scores), self.stages.log_confidence
            )
        return tree, rows, paths, broken

    def _draft(
        self, facts: Facts, root: Tensor, n: Tensor, active: Tensor, state: Tensor
    ) -> tuple[tuple, Tensor]:
        """The pool of candidates, and whether any logit was NaN."""
        length = facts.arrays["n"]
        with facts.timed("checks"):
            self._drafter.look()
        with facts.timed("draft"):
            pool, beam, hidden, broken = self.stages.sprout(root, n, state)
            faults = broken.asnumpy()
        self._check_grown(facts, pool, beam, 1)
        for level_rows, level in self.stages.levels:
            with facts.timed("draft"):
                rows = level_rows(beam[4], n, active)
            with facts.timed("checks"):
                slots = self._check_draft_rows(rows)
                mask = mask_of(rows[2].asnumpy(), self._drafter.slots)
                invariants.check_level_mask(mask, length, length, beam[4].asnumpy())
            with facts.timed("draft"):
                pool, beam, hidden, broken = level(hidden, n, active, *pool, *beam)
                faults = faults | broken.asnumpy()
            with facts.timed("checks"):
                self._drafter.check_writes(length, slots)
            self._check_grown(facts, pool, beam, self.stages.branch)
        return pool, Tensor(faults)

    def _check_draft_rows(self, rows: tuple) -> np.ndarray:
        """Positions and slots of a drafter forward are in range; returns the slots."""
        places, slots, _ = numpy_of(rows)
        invariants.check_indices("drafter positions", places, self._draft_positions)
        invariants.check_indices("drafter slots", slots, self._drafter.slots)
        return slots

    def _check_grown(self, facts: Facts, pool: tuple, beam: tuple, parents: int) -> None:
        with facts.timed("checks"):
            known = numpy_of(pool)
            check_pool(known, self._vocabulary)
            check_beam(numpy_of(beam), known, parents)

    def _check_tree(self, facts: Facts, tree: tuple, rows: tuple, paths: Tensor) -> None:
        with facts.timed("checks"):
            tokens, parents, depths, laid, valid, scores, ancestors = numpy_of(tree)
            length, active = facts.arrays["n"], facts.arrays["active"]
            facts.arrays |= {"tokens": tokens, "parents": parents, "depths": depths}
            facts.arrays |= {"scores": scores, "valid": valid}
            invariants.check_tree(tokens, parents, depths, laid, self._vocabulary)
            invariants.check_ancestors(ancestors, parents)
            first = np.arange(tokens.shape[1]) == 0
            usable = ((laid & (length > 0)[:, None]) | first) & active[:, None]
            wrong = np.argwhere(valid != usable)
            if len(wrong):
                where = f"batch {wrong[0][0]}, row {wrong[0][1]}"
                found = f"valid {valid[tuple(wrong[0])]}"
                raise invariants.InvariantError("tree.usable", found, where, "idle rows alone to be left out")
            places, slots, seen = numpy_of(rows)
            invariants.check_tree_mask(mask_of(seen, self._teacher.slots), length, parents, valid)
            invariants.check_indices("positions", places, self._positions)
            invariants.check_indices("slots", slots, self._teacher.slots)
            invariants.check_indices("path tokens", paths.asnumpy(), self._vocabulary)

    def _verified(
        self, facts: Facts, tree: tuple, rows: tuple, paths: Tensor, params: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        places, slots, seen = rows
        with facts.timed("checks"):
            invariants.check_indices("positions of uniforms", places.asnumpy() + 1, uniforms.shape[1])
        with facts.timed("verify"):
            choices, taps, fault = self.verify(tree[0], places, slots, seen, paths, params, uniforms)
            facts.arrays["choices"] = choices.asnumpy()
        with facts.timed("checks"):
            invariants.check_indices("choices", facts.arrays["choices"], self._vocabulary)
            self._teacher.check_writes(facts.arrays["n"], slots.asnumpy())
        return choices, taps, fault

    def _check_accepted(self, arrays: dict[str, np.ndarray]) -> None:
        tree = (arrays[name] for name in ("tokens", "parents", "valid", "choices", "emitted"))
        invariants.check_path(arrays["path"], arrays["count"], *tree)
        wanted = np.where(arrays["active"], arrays["accepted"] + 1, 0)
        if not np.array_equal(arrays["count"], wanted):
            raise invariants.InvariantError("path.count", arrays["count"], "the batch", f"{wanted}")

    def _take(
        self,
        facts: Facts,
        path: Tensor,
        count: Tensor,
        n: Tensor,
        taps: Tensor,
        emitted: Tensor,
        state: Tensor,
    ) -> Tensor:
        """Commit and extend; the drafter's new state."""
        length, used = facts.arrays["n"], facts.arrays["count"]
        with facts.timed("commit"):
            sources, targets = numpy_of(self.stages.moves(path, count, n))
        with facts.timed("checks"):
            invariants.check_indices("commit sources", sources, self._teacher.slots)
            invariants.check_indices("commit targets", targets, self._teacher.slots)
        with facts.timed("commit"):
            after = self.stages.commit(path, count, n).asnumpy()
        with facts.timed("checks"):
            self._teacher.check_moves(sources, targets, used)
            if not np.array_equal(after, length + used):
                raise invariants.InvariantError("commit.length", after, "the batch", f"{length + used}")
        with facts.timed("extend"):
            rows = self.stages.extend_rows(n, count)
        with facts.timed("checks"):
            slots = self._check_draft_rows(rows)
            valid = np.arange(slots.shape[1]) < used[:, None]
            chain = np.tile(np.maximum(np.arange(slots.shape[1]) - 1, 0), (len(used), 1))
            mask = mask_of(rows[2].asnumpy(), self._drafter.slots)
            invariants.check_tree_mask(mask, length, chain, valid)
        with facts.timed("extend"):
            state = self.stages.extend(taps, path, emitted, n, count, state)
        with facts.timed("checks"):
            self._drafter.check_writes(length, slots)
        return state
