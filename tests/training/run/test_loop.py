"""The loop around a small honest trainer: what it saves, how it resumes, and how it ends."""

import errno
import itertools
import os
import signal
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support import toy_corpus

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.progress import Progress
from ms_eagle.training.batches import Batches
from ms_eagle.training.features.teacher import Features
from ms_eagle.training.run import checkpoint as run_checkpoint
from ms_eagle.training.run.loop import Intervals, Loop
from ms_eagle.training.run.metrics import Metrics, read
from ms_eagle.training.schedule import Schedule
from ms_eagle.training.workers import Workers

CORPUS = toy_corpus.corpus([6, 7, 5, 8, 4, 6, 7, 5], vocabulary=8)
DEPTH = 2


class Source:
    taps = (1,)

    def read(self, conversations):
        rng = np.random.default_rng(0)
        states = rng.standard_normal((len(CORPUS.ids), 4)).astype(np.float16)
        return [Features(part := states[slice(*CORPUS.offsets[i : i + 2])], part) for i in conversations]


@dataclass
class Report:
    loss: float
    grad_norm: float
    accuracy: tuple[float, ...]
    positions: int


class Regression:
    """Predicts each token from its own features by logistic regression with momentum."""

    def __init__(self) -> None:
        self.weights, self.moment = np.zeros((4, 8)), np.zeros((4, 8))
        self.after = lambda step: None
        self.steps = 0

    def train(self, batch, rate):
        x, y = batch.final[batch.segments > 0].astype(float), batch.tokens[batch.segments > 0]
        odds = np.exp(x @ self.weights)
        odds /= odds.sum(1, keepdims=True)
        loss = -np.log(odds[np.arange(len(y)), y]).mean()
        accuracy = float((odds.argmax(1) == y).mean())
        odds[np.arange(len(y)), y] -= 1
        gradient = x.T @ odds / len(y)
        self.moment = 0.9 * self.moment + gradient
        self.weights = self.weights - rate * self.moment
        self.steps += 1
        self.after(self.steps)
        return Report(float(loss), float(np.linalg.norm(gradient)), (accuracy, accuracy / 2), len(y))

    def evaluate(self, batch):
        x, y = batch.final[batch.segments > 0].astype(float), batch.tokens[batch.segments > 0]
        right = (x @ self.weights).argmax(1) == y
        return np.array([len(y), right.sum(), right.sum() // 2])

    def tensors(self):
        return {"w": self.weights.astype(np.float32)}

    def state(self):
        return {"weights": self.weights.copy(), "moment": self.moment.copy()}

    def restore(self, state):
        self.weights, self.moment = state["weights"].copy(), state["moment"].copy()


class Run:
    """A loop in a directory, and what it said and published."""

    def __init__(self, directory, trainer=None, *, steps=20, interval=4, checkpoint=5, rate=0.5):
        self.directory, self.trainer = directory, trainer or Regression()
        self.said, self.published, self.drawn = [], [], 0
        directory.mkdir(exist_ok=True)
        plan = {"rows": 2, "length": 12, "seed": 5}
        self.loop = Loop(
            self.trainer,
            Batches(CORPUS, Source(), np.arange(6), **plan),
            Batches(CORPUS, Source(), np.arange(6, 8), **plan).all,
            Schedule(rate, steps, 0.1, 0.1),
            Intervals(interval, checkpoint),
            checkpoint=directory / "checkpoint.npz",
            metrics=Metrics(directory, 2, DEPTH),
            publish=lambda tensors, at, found: self.published.append((at, found, tensors)),
            evaluated=self._evaluated,
            say=self.said.append,
            progress=Progress(quiet=True),
            workers=Workers(),
        )

    def _evaluated(self):
        self.drawn += 1

    def result(self):
        """All that a run leaves behind; the clock's readings left out."""
        at, state = run_checkpoint.load(self.directory / "checkpoint.npz")
        steps = [{**row, "seconds": 0} for row in read(self.directory / "steps.csv")]
        return replace(at, seconds=0), state, steps, read(self.directory / "evaluations.csv")


def assert_same(first, second):
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    for name, values in first[1].items():
        np.testing.assert_array_equal(values, second[1][name])
    assert first[2:] == second[2:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 20 steps without interruption."""
    run = Run(tmp_path_factory.mktemp("whole"))
    assert run.loop.run() is None
    return run


def test_a_run_learns_and_writes_its_figures(whole):
    at, _, steps, evaluations = whole.result()
    assert at.step == 20
    assert [row["step"] for row in steps] == list(range(1, 21))
    assert steps[19]["loss"] < 0.9 * steps[0]["loss"]
    assert steps[0]["positions"] == 24 or steps[0]["positions"] > 12
    assert [row["step"] for row in evaluations] == [0, 4, 8, 12, 16, 20]
    assert whole.drawn == 6
    assert [line for line in whole.said if "left" in line] == ["step 5 of 20, about 0 s left"]
    for row in evaluations:
        assert row["accept_L"] == pytest.approx(row["depth_1"] + row["depth_2"], abs=1e-5)


def test_the_best_head_is_the_one_published(whole):
    evaluations = whole.result()[3]
    lengths = [row["accept_L"] for row in evaluations]
    rising = [i for i, length in enumerate(lengths) if length > max(lengths[:i], default=-1)]
    assert [at.step for at, _, _ in whole.published] == [evaluations[i]["step"] for i in rising]
    best, found, _ = whole.published[len(whole.published) - 1]
    assert found.length == best.best_accept == pytest.approx(max(lengths), abs=1e-5)
    assert whole.result()[0].best_step == best.best_step == best.step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 7, 8, 10])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, number, at):
    trainer = Regression()
    trainer.after = lambda step: os.kill(os.getpid(), number) if step == at else None
    first = Run(tmp_path / "run", trainer)
    assert first.loop.run() == number
    assert first.said[len(first.said) - 1] == f"stopped after step {at} of 20, which is saved"
    second = Run(tmp_path / "run")
    assert second.loop.run() is None
    assert second.said[0] == f"continuing after step {at} of 20"
    assert_same(second.result(), whole.result())


def test_killed_and_continued_equals_uninterrupted(tmp_path, whole):
    class Killed(BaseException):
        """Nothing may catch it, as nothing catches SIGKILL."""

    def kill(step):
        if step == 14:
            raise Killed

    trainer = Regression()
    trainer.after = kill
    with pytest.raises(Killed):
        Run(tmp_path / "run", trainer).loop.run()
    with open(tmp_path / "run" / "steps.csv", "a") as file:
        file.write("14,3.1")  # a line cut short
    assert len(read(tmp_path / "run" / "steps.csv")) == 13
    run = Run(tmp_path / "run")
    run.loop.run()
    assert run.said[0] == "continuing after step 10 of 20"
    assert_same(run.result(), whole.result())


def test_a_finished_run_stays_finished(tmp_path):
    Run(tmp_path / "run", steps=3).loop.run()
    again = Run(tmp_path / "run", steps=3)
    assert again.loop.run() is None
    assert again.trainer.steps == 0


@pytest.mark.parametrize(("field", "what"), [("loss", "loss"), ("grad_norm", "norm of the gradient")])
def test_what_is_not_a_number_stops_the_run_and_names_the_batch(tmp_path, field, what):
    class Diverges(Regression):
        def train(self, batch, rate):
            self.batch = batch
            report = super().train(batch, rate)
            return replace(report, **{field: float("nan")}) if self.steps == 8 else report

    run = Run(tmp_path / "run", Diverges())
    with pytest.raises(UserError) as caught:
        run.loop.run()
    numbers = sorted(n for row in run.trainer.batch.conversations for n in row)
    named = ", ".join(map(str, numbers))
    assert f"step 8: the {what} is nan over the conversations {named} of the corpus" in str(caught.value)
    assert "the last checkpoint, after step 5, is intact" in str(caught.value)
    assert run_checkpoint.load(tmp_path / "run" / "checkpoint.npz")[0].step == 5


def test_spoilt_weights_are_not_saved(tmp_path):
    trainer = Regression()

    def spoil(step):
        if step == 10:
            trainer.weights = trainer.weights * np.inf

    trainer.after = spoil
    with pytest.raises(UserError, match="after step 10 the training state weights holds NaN or infinity"):
        Run(tmp_path / "run", trainer).loop.run()
    assert run_checkpoint.load(tmp_path / "run" / "checkpoint.npz")[0].step == 5


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, whole):
    write, calls = files.write_bytes, []

    def full(path, data):
        calls.append(path.name)
        if calls.count("checkpoint.npz") == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(
        UserError, match="No space left on device; the checkpoint that was there is untouched"
    ):
        Run(tmp_path / "run").loop.run()
    monkeypatch.undo()
    run = Run(tmp_path / "run")
    run.loop.run()
    assert run.said[0] == "continuing after step 5 of 20"
    assert_same(run.result(), whole.result())


def test_a_damaged_checkpoint_is_refused(tmp_path):
    Run(tmp_path / "run", steps=3).loop.run()
    path = tmp_path / "run" / "checkpoint.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"checkpoint.npz is damaged .* remove the run's directory"):
        Run(tmp_path / "run", steps=3).loop.run()


def test_the_rate_rises_and_falls():
    schedule = Schedule(peak=2.0, steps=10, warmup=0.2, floor=0.25)
    rates = [schedule.rate(i) for i in range(10)]
    assert rates[:2] == [1.0, 2.0]
    assert rates[9] == pytest.approx(0.5)
    assert rates[5] == pytest.approx(1.25)  # half way down
    assert all(a > b for a, b in itertools.pairwise(rates[1:]))
    assert Schedule(1.0, 1, 0.0, 0.1).rate(0) == pytest.approx(0.1)
