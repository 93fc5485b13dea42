"""Figures of a run as CSV files: one line for each step, one for each evaluation."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ms_eagle.system import files


class StepFigures(Protocol):
    """What a step of training reports; see ``ms_eagle.training.step.StepReport``."""

    loss: float
    grad_norm: float
    accuracy: tuple[float, ...]
    positions: int


@dataclass(frozen=True)
class Acceptance:
    """How long the head's greedy drafts agree with the teacher.

    Attributes:
        judged: positions drafted from.
        depths: for each length, the share of them whose first so many draft tokens are all the teacher's.
    """

    judged: int
    depths: tuple[float, ...]

    @classmethod
    def of(cls, counts: np.ndarray) -> "Acceptance":
        """From ``[depth + 1]`` counts: positions judged, then those right up to each depth."""
        judged = int(counts[0])
        return cls(judged, tuple(float(c) / max(judged, 1) for c in counts[1:]))

    @property
    def length(self) -> float:
        """Mean tokens accepted of one draft, without the teacher's own next token (accept_L of a chain)."""
        return sum(self.depths)


class Metrics:
    """Appends to ``steps.csv`` and ``evaluations.csv`` of a run's directory."""

    def __init__(self, directory: Path, ttt_steps: int, depth: int) -> None:
        self._steps = directory / "steps.csv"
        self._evaluations = directory / "evaluations.csv"
        accuracy = [f"accuracy_{i + 1}" for i in range(ttt_steps)]
        self._step_names = ["step", "seconds", "rate", "loss", "grad_norm", *accuracy, "positions"]
        self._evaluation_names = ["step", "accept_L", *(f"depth_{i + 1}" for i in range(depth)), "judged"]

    def begin(self, step: int) -> None:
        """Forget what was written after ``step`` steps: a run that is continued takes those steps again.

        One that starts anew evaluates before its first step again, too.
        """
        for path, names in ((self._steps, self._step_names), (self._evaluations, self._evaluation_names)):
            rows = [row for row in read(path) if step > 0 and row["step"] <= step]
            lines = [names, *([_text(row[name]) for name in names] for row in rows)]
            files.write_text(path, "".join(f"{','.join(line)}\n" for line in lines))

    def step(self, step: int, seconds: float, rate: float, report: StepFigures) -> None:
        """Add the figures of a step; ``seconds`` since the run began, pauses left out."""
        figures = [rate, report.loss, report.grad_norm, *report.accuracy]
        _append(self._steps, [step, round(seconds, 2), *figures, report.positions])

    def evaluation(self, step: int, acceptance: Acceptance) -> None:
        """Add the figures of an evaluation after ``step`` steps."""
        _append(self._evaluations, [step, acceptance.length, *acceptance.depths, acceptance.judged])

    def steps(self) -> list[dict[str, float]]:
        """Every step so far, by column."""
        return read(self._steps)

    def evaluations(self) -> list[dict[str, float]]:
        """Every evaluation so far, by column."""
        return read(self._evaluations)


def read(path: Path) -> list[dict[str, float]]:
    """Whole lines of a CSV file of numbers; none where there is no file. A line cut by a kill is left out."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(line for line in file if line.endswith("\n"))]
    return [
        {name: float(value) for name, value in row.items()}
        for row in rows
        if None not in row.values() and None not in row
    ]


def _append(path: Path, values: Sequence[float]) -> None:
    """Add a line in one write, so that a kill cannot leave half of one before a whole one."""
    line = f"{','.join(map(_text, values))}\n".encode()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def _text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"
