"""The check at the end of an answer: caches and tokens against a run of the teacher alone.

A violation between two stages shows at once (``reference_cycle``). What is left is that all of it together
is right: both caches hold what a fresh run over the emitted tokens computes, and the teacher, one token at
a time, says the same tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_eagle.cycle.cycle import TeacherCycle
from ms_eagle.engine.engine import COUNT, TOKENS
from ms_eagle.engine.windows import windows
from ms_eagle.models.reading import RowLogits
from ms_eagle.reference.invariants import InvariantError
from ms_eagle.reference.mode import ReferenceGraphs

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
        ties: by sequence of the batch.
    """

    cache_difference: dict[str, float]
    ties: list[list[Tie]]


def read_fresh(graphs: ReferenceGraphs, sequences: Sequence[Sequence[int]], n: np.ndarray) -> Tensor:
    """Fill the caches with the first ``n`` tokens of every sequence, from nothing; the drafter's state."""
    state = graphs.initial_state()
    for window, start, count in windows(sequences, np.zeros_like(n), n, graphs.chunk):
        state = graphs.performance.prefill()(Tensor(window), Tensor(start), Tensor(count), state)
    return state


class Audit:
    """Runs the check over the caches of some graphs, and leaves them as they were."""

    def __init__(self, graphs: ReferenceGraphs) -> None:
        self._graphs = graphs
        performance = graphs.performance
        self._alone = {greedy: TeacherCycle(performance.cycle(greedy).verifier) for greedy in (True, False)}
        self._logits = RowLogits(graphs.teacher)

    def check(
        self,
        prompts: Sequence[Sequence[int]],
        sequences: Sequence[Sequence[int]],
        n: np.ndarray,
        *,
        greedy: bool,
        controls: tuple[Tensor, Tensor],
        seen: Sequence[Sequence[int]] | None = None,
    ) -> Findings:
        """Compare with a fresh run.

        Args:
            prompts: of all B sequences; a sequence of which nothing is committed is left out.
            sequences: prompts with their emitted tokens.
            n: ``[B]`` integers, the committed lengths.
            greedy: which cycle made them.
            controls: sampling numbers and uniforms that it was given.
            seen: what the repetition penalty took for seen at the start; None: the prompts.

        Raises:
            InvariantError: ``cache.equal`` or ``output.equal``.
        """
        with self._kept() as images:
            read_fresh(self._graphs, sequences, n)
            differences = {
                watch.name: watch.check_equal(image, n)
                for watch, image in zip(self._graphs.watches, images, strict=True)
            }
            self._graphs.performance.start_request(prompts if seen is None else seen)
            ties = self._say_again(prompts, sequences, n, greedy, controls)
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

    def _say_again(
        self,
        prompts: Sequence[Sequence[int]],
        sequences: Sequence[Sequence[int]],
        n: np.ndarray,
        greedy: bool,
        controls: tuple[Tensor, Tensor],
    ) -> list[list[Tie]]:
        """Let the teacher alone choose every emitted token again, given those before it."""
        cycle, state = self._alone[greedy], self._graphs.initial_state()
        ties: list[list[Tie]] = [[] for _ in sequences]
        at = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
        while (active := at < n).any():
            place = np.where(active, at, 0).astype(np.int32)
            root = np.array([s[p] for s, p in zip(sequences, place, strict=True)], np.int32)
            report, _ = cycle(Tensor(root), Tensor(place), Tensor(active), *controls, state)
            said = report.asnumpy()
            for row in np.flatnonzero(active & (said[:, COUNT] == 1)):
                emitted, token = sequences[row][at[row] + 1], int(said[row, TOKENS])
                if token != emitted:
                    ties[row].append(self._tie(row, root, place, active, emitted, token, greedy))
            at = at + active
        return ties

    def _tie(
        self,
        row: int,
        root: np.ndarray,
        place: np.ndarray,
        active: np.ndarray,
        emitted: int,
        token: int,
        greedy: bool,
    ) -> Tie:
        alone = self._logits(Tensor(root[:, None]), Tensor(place), Tensor(active.astype(np.int32)))
        logits = alone.asnumpy()[row, 0]
        margin = float(logits[token] - logits[emitted]) / max(1e-6, float(abs(logits[token])))
        position = int(place[row]) + 1
        if not greedy or not abs(margin) <= NEAR_TIE:
            where = f"batch {row}, position {position}"
            expected = (
                f"{token}, which the teacher alone chooses (relative margin of the logits {margin:.2g})"
            )
            raise InvariantError("output.equal", f"token {emitted}", where, expected)
        return Tie(position, emitted, token, margin)
