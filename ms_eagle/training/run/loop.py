"""The training loop: steps, evaluations, checkpoints, and an end that loses nothing."""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import interrupts
from ms_eagle.system.progress import Progress, duration
from ms_eagle.training.batches import Batch
from ms_eagle.training.run import checkpoint as run_checkpoint
from ms_eagle.training.run.checkpoint import RunProgress
from ms_eagle.training.run.metrics import Acceptance, Metrics, StepFigures
from ms_eagle.training.schedule import Schedule
from ms_eagle.training.workers import Workers

_NAMED = 12  # conversations written out in a message
_RECENT = 50  # steps that tell the pace
_EARLY = 5  # steps after which a run says how long it takes


class Trainer(Protocol):
    """What takes the steps; ``ms_eagle.training.step.HeadTrainer`` does."""

    def train(self, batch: Batch, rate: float) -> StepFigures:
        """Take one step with a learning rate."""
        ...

    def evaluate(self, batch: Batch) -> np.ndarray:
        """Integers ``[depth + 1]``: positions judged, then those whose first d drafts are the teacher's."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Float32 weights by our names."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """All that later steps depend on."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up where ``state`` was asked for."""
        ...


class StepBatches(Protocol):
    """Batches by the number of the step; ``ms_eagle.training.batches.Batches`` has them."""

    def step(self, number: int) -> Batch:
        """The batch of a step, counted from 0."""
        ...


@dataclass(frozen=True)
class Intervals:
    """Steps between evaluations, and between checkpoints."""

    evaluation: int
    checkpoint: int


class Loop:
    """One run, from where its checkpoint left it to its last step."""

    def __init__(
        self,
        trainer: Trainer,
        batches: StepBatches,
        held_out: Callable[[], Iterable[Batch]],
        schedule: Schedule,
        intervals: Intervals,
        *,
        checkpoint: Path,
        metrics: Metrics,
        publish: Callable[[dict[str, np.ndarray], RunProgress, Acceptance], None],
        evaluated: Callable[[], None],
        say: Callable[[str], None],
        progress: Progress,
        workers: Workers,
    ) -> None:
        """Put the parts together.

        Args:
            trainer, batches, schedule, intervals: how steps are taken.
            held_out: gives the batches to evaluate on, the same ones every time.
            checkpoint: the file.
            metrics: takes the figures.
            publish: is called with the weights of every head that is better than all before it.
            evaluated: is called when the figures of an evaluation are written.
            say: is told of every evaluation in a line.
            progress: shows the bar.
            workers: this process among those that train together.
        """
        self._trainer, self._batches, self._held_out = trainer, batches, held_out
        self._schedule, self._intervals = schedule, intervals
        self._checkpoint, self._metrics = checkpoint, metrics
        self._publish, self._evaluated = publish, evaluated
        self._say, self._progress = say, progress
        self._workers = workers

    def run(self) -> int | None:
        """Take the steps that are left.

        Ctrl-C and SIGTERM end the run after the step in flight, with a checkpoint.

        Returns: None when the last step is done, else the signal that ended the run.

        Raises:
            UserError: the loss is not finite; the checkpoint is damaged or cannot be written.
        """
        at = self._resume()
        with interrupts.deferred() as stop, self._progress.steps("training", self._schedule.steps) as bar:
            bar.reach(at.step)
            bar.describe("compiling and evaluating" if at.step == 0 else "compiling")
            begun, recent = time.monotonic() - at.seconds, deque(maxlen=_RECENT)
            if at.step == 0:
                at = self._evaluate(at)
            while at.step < self._schedule.steps:
                report, rate = self._step(at.step)
                at = replace(at, step=at.step + 1, seconds=time.monotonic() - begun)
                if self._workers.leads:
                    self._metrics.step(at.step, at.seconds, rate, report)
                bar.advance()
                recent.append(at)
                bar.describe(self._described(report, recent))
                if len(recent) == _EARLY:
                    self._say(f"step {at.step} of {self._schedule.steps}, about {self._left(recent)} left")
                done = at.step == self._schedule.steps
                if done or at.step % self._intervals.evaluation == 0:
                    at = self._evaluate(at)
                stopping = self._workers.any(stop.signal is not None)
                if done or stopping or at.step % self._intervals.checkpoint == 0:
                    self._save(at)
                if stopping and not done:
                    self._say(f"stopped after step {at.step} of {self._schedule.steps}, which is saved")
                    return stop.signal or signal.SIGTERM  # another worker may have had the signal
        return None

    def _resume(self) -> RunProgress:
        at = RunProgress()
        if self._checkpoint.exists():
            at, state = run_checkpoint.load(self._checkpoint)
            self._trainer.restore(state)
            self._say(f"continuing after step {at.step} of {self._schedule.steps}")
        if self._workers.leads:
            self._metrics.begin(at.step)
        return at

    def _step(self, number: int) -> tuple[StepFigures, float]:
        batch, rate = self._batches.step(number), self._schedule.rate(number)
        report = self._trainer.train(batch, rate)
        if not (math.isfinite(report.loss) and math.isfinite(report.grad_norm)):
            what = "loss" if not math.isfinite(report.loss) else "norm of the gradient"
            value = report.loss if what == "loss" else report.grad_norm
            raise UserError(
                f"step {number + 1}: the {what} is {value} over the conversations {_listed(batch)} of the "
                f"corpus; {self._kept()}: lower optimization.learning_rate, or make the corpus without "
                "them, and start a new run."
            )
        return report, rate

    def _kept(self) -> str:
        if not self._checkpoint.exists():
            return "no checkpoint had been written"
        return f"the last checkpoint, after step {run_checkpoint.load(self._checkpoint)[0].step}, is intact"

    def _evaluate(self, at: RunProgress) -> RunProgress:
        counts = sum(self._trainer.evaluate(batch) for batch in self._held_out())
        acceptance = Acceptance.of(np.asarray(counts))
        better = acceptance.length > at.best_accept
        if better:
            at = replace(at, best_step=at.step, best_accept=acceptance.length)
        if self._workers.leads:
            self._metrics.evaluation(at.step, acceptance)
            if better:
                self._publish(self._trainer.tensors(), at, acceptance)
            self._evaluated()
        depths = " ".join(f"{share:.3f}" for share in acceptance.depths)
        best = "best so far" if better else f"best {at.best_accept:.3f} after step {at.best_step}"
        self._say(f"step {at.step}: accept_L {acceptance.length:.3f} (by depth {depths}); {best}")
        return at

    def _save(self, at: RunProgress) -> None:
        if self._workers.leads:
            run_checkpoint.save(self._checkpoint, at, self._trainer.state())

    def _described(self, report: StepFigures, recent: Sequence[RunProgress]) -> str:
        accuracy = " ".join(f"{share:.2f}" for share in report.accuracy)
        text = f"loss {report.loss:.3f}, accuracy {accuracy}"
        if len(recent) == 1:  # one step alone, which took as long as its compilation
            return text
        return f"{text}, {self._left(recent)} left"

    def _left(self, recent: Sequence[RunProgress]) -> str:
        """How long the remaining steps take at the pace of the recent ones, two at least."""
        first, last = recent[0], recent[-1]
        pace = (last.seconds - first.seconds) / (last.step - first.step)
        return duration((self._schedule.steps - last.step) * pace)


def _listed(batch: Batch) -> str:
    numbers = sorted({number for row in batch.conversations for number in row})
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more
