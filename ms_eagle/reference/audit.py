"""The check at the end of an answer: caches and tokens against a run of the teacher alone.

A violation between two stages shows at once (``checks``). What is left is that all of it together is
right: both caches hold what a fresh run over the emitted tokens computes, and the teacher, one token at
a time, says the same tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_eagle.cycle.cycle import PlainCycle
from ms_eagle.drafters.base import NoDrafter
from ms_eagle.engine.controls import Controls
from ms_eagle.models.reading import Logits, Reading, windows
from ms_eagle.reference.invariants import InvariantError
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.report import COUNT, TOKENS

# A choice between two logits closer than this share of the larger may fall differently where kernels round
# differently for one row and for many.
NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Tie:
    """A token that the teacher alone chose otherwise, by less than rounding decides.

    Attributes:
        position: of the token in its sequence.
        emitted, teacher: the two tokens.
        margin: difference of their logits, over the larger one's size.
    """

    position: int
    emitted: int
    teacher: int
    margin: float


@dataclass(frozen=True)
class Findings:
    """What an audit measured while finding nothing wrong.

    Attributes:
        cache_difference: by model, the largest difference to the fresh run, over the buffer's largest value.
        ties: by slot.
    """

    cache_difference: dict[str, float]
    ties: dict[int, list[Tie]]


def read_fresh(graphs: ReferenceGraphs, sequences: Sequence[Sequence[int]], n: np.ndarray) -> Tensor:
    """Fill the caches with the first ``n`` tokens of every sequence, from nothing; the drafter's state."""
    state = graphs.empty()
    for window, start, count in windows(sequences, np.zeros_like(n), n, graphs.facts.sizes.chunk):
        state = graphs.performance.prefill()(Tensor(window), Tensor(start), Tensor(count), state)
    return state


@dataclass(frozen=True)
class Answered:
    """A finished answer.

    Attributes:
        prompt: token ids.
        sequence: prompt and emitted tokens; n: how many of them are committed.
        sampling: how its tokens were chosen.
    """

    prompt: Sequence[int]
    sequence: Sequence[int]
    n: int
    sampling: SamplingParams


class Audit:
    """Runs the check over the caches of some graphs, and leaves them as they were."""

    def __init__(self, graphs: ReferenceGraphs) -> None:
        self._graphs = graphs
        teacher, verifier = graphs.performance.teacher, graphs.performance.verifier
        self._alone = {sampled: PlainCycle(verifier(sampled), NoDrafter()) for sampled in (False, True)}
        self._logits = Reading(teacher, Logits(teacher))

    def warm_up(self, sampled: bool) -> None:
        """Compile the teacher alone, which takes as long as a cycle; the caches stay as they are."""
        sizes = self._graphs.facts.sizes
        idle, asleep = Tensor(np.zeros(sizes.batch, np.int32)), Tensor(np.zeros(sizes.batch, bool))
        controls = Controls(sizes.batch, self._graphs.facts.positions)
        with self._kept():
            report, _ = self._alone[sampled](idle, idle, asleep, *controls.tensors(), self._graphs.empty())
            report.asnumpy()

    def check(self, answers: Mapping[int, Answered]) -> Findings:
        """Compare with a fresh run.

        Args:
            answers: by slot.

        Raises:
            InvariantError: ``cache.equal`` or ``output.equal``.
        """
        facts = self._graphs.facts
        rows = range(facts.sizes.batch)
        sequences = [answers[row].sequence if row in answers else [0] for row in rows]
        n = np.array([answers[row].n if row in answers else 0 for row in rows], np.int32)
        samplings = {row: each.sampling for row, each in answers.items()}
        controls = Controls(facts.sizes.batch, facts.positions)
        for row, sampling in samplings.items():
            controls.set(row, sampling)
        with self._kept() as images:
            read_fresh(self._graphs, sequences, n)
            differences = {
                watch.name: watch.check_equal(image, n)
                for watch, image in zip(self._graphs.watches, images, strict=True)
            }
            seen = [[*answers[r].prompt, *samplings[r].penalised] if r in answers else [] for r in rows]
            self._graphs.see(seen)
            ties = self._choose_again(answers, controls)
        return Findings(differences, ties)

    @contextmanager
    def _kept(self) -> Iterator[list]:
        watches = self._graphs.watches
        images = [watch.look() for watch in watches]
        try:
            yield images
        finally:
            for watch, image in zip(watches, images, strict=True):
                watch.restore(image)

    def _choose_again(self, answers: Mapping[int, Answered], controls: Controls) -> dict[int, list[Tie]]:
        """Let the teacher alone choose every emitted token again, given those before it."""
        batch = self._graphs.facts.sizes.batch
        sampled = any(not each.sampling.plain for each in answers.values())
        cycle, state = self._alone[sampled], self._graphs.empty()
        ties: dict[int, list[Tie]] = {row: [] for row in answers}
        at = {row: len(each.prompt) - 1 for row, each in answers.items()}
        while running := [row for row, each in answers.items() if at[row] < each.n]:
            place, root = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
            for row in running:
                place[row], root[row] = at[row], answers[row].sequence[at[row]]
            active = np.isin(np.arange(batch), running)
            report, _ = cycle(Tensor(root), Tensor(place), Tensor(active), *controls.tensors(), state)
            report = report.asnumpy()
            for row in running:
                emitted, token = answers[row].sequence[at[row] + 1], int(report[row, TOKENS])
                if report[row, COUNT] == 1 and token != emitted:
                    tie = self._tie(row, root, place, active, emitted, token)
                    if not answers[row].sampling.plain or not abs(tie.margin) <= NEAR_TIE:
                        where = f"batch {row}, position {tie.position}"
                        expected = (
                            f"{token}, which the teacher alone chooses (relative margin of the logits "
                            f"{tie.margin:.2g})"
                        )
                        raise InvariantError("output.equal", f"token {emitted}", where, expected)
                    ties[row].append(tie)
                at[row] += 1
        return ties

    def _tie(
        self, row: int, root: np.ndarray, place: np.ndarray, active: np.ndarray, emitted: int, token: int
    ) -> Tie:
        """The two tokens with the margin of their logits."""
        alone = self._logits(Tensor(root[:, None]), Tensor(place), Tensor(active.astype(np.int32)))
        logits = alone.asnumpy()[row, 0]
        margin = float(logits[token] - logits[emitted]) / max(1e-6, float(abs(logits[token])))
        return Tie(int(place[row]) + 1, emitted, token, margin)
