"""The figures of a run as a picture."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ms_eagle.pages.plot import Marker, Plot, Series, lines, sheet, standalone
from ms_eagle.system import files

Rows = Sequence[Mapping[str, float]]

_MOST_POINTS = 400  # of a line: about as many as its plot has units


def draw(path: Path, steps: Rows, evaluations: Rows, title: str) -> None:
    """Write an SVG: loss, accuracy by unrolled step, acceptance, learning rate, gradient norm.

    Args:
        path: is replaced whole.
        steps, evaluations: rows by column, see ``metrics.Metrics``.
        title: of the picture.
    """
    plots = [
        _noisy("training: loss", steps, "loss"),
        _shares(
            "training: draft tokens that are the teacher's, by unrolled step",
            steps,
            "accuracy_",
            "step",
            smoothed,
        ),
        _length(evaluations),
        _shares("held out: drafts right up to each depth", evaluations, "depth_", "depth"),
        _noisy("training: norm of the gradient", steps, "grad_norm"),
        lines("learning rate", [_series("rate", steps, _column(steps, "rate"))], "steps", "rate"),
    ]
    files.write_text(path, standalone(sheet(title, plots)))


def _noisy(title: str, steps: Rows, name: str) -> Plot:
    """Each step behind the mean of its neighbourhood, cut where the first steps would flatten the others."""
    values = _column(steps, name)
    span = None
    if values.size > 20:
        span = (float(values.min()) * 0.95, float(np.quantile(values, 0.99)) * 1.05)
        values = np.minimum(values, span[1])
    series = [_series("each step", steps, values, faint=True), _series("mean", steps, smoothed(values))]
    return lines(title, series, "steps", name, y=span)


def _shares(
    title: str,
    rows: Rows,
    prefix: str,
    what: str,
    shown: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Plot:
    names = [name for name in (rows[0] if rows else {}) if name.startswith(prefix)]
    series = [
        _series(f"{what} {name.removeprefix(prefix)}", rows, shown(_column(rows, name))) for name in names
    ]
    return lines(title, series, "steps", "share", y=(0.0, 1.0))


def _length(evaluations: Rows) -> Plot:
    values, markers = _column(evaluations, "accept_L"), []
    if values.size:
        best = evaluations[int(values.argmax())]
        label = f"best: {best['accept_L']:.3f} after step {best['step']:.0f}"
        markers = [Marker(best["step"], label, "mean")]
    series = [_series("accept_L", evaluations, values)]
    title = "held out: simulated accept length (greedy chain)"
    return lines(title, series, "steps", "accept_L, tokens", markers=markers)


def _series(name: str, rows: Rows, values: np.ndarray, *, faint: bool = False) -> Series:
    """Values over steps; of each stretch of a long line only its lowest and its highest value."""
    stretches = np.array_split(np.arange(values.size), min(values.size, _MOST_POINTS // 2) or 1)
    kept = sorted({int(s[i]) for s in stretches if s.size for i in (values[s].argmin(), values[s].argmax())})
    points = [(rows[i]["step"], float(values[i])) for i in kept]
    return Series(name, points, dots=len(rows) <= 60, faint=faint)


def _column(rows: Rows, name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], float)


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of up to 25 values around each, ``[n]``; at the ends of those there are."""
    half = min(12, values.size // 20)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(values.size)
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, values.size)
    return (sums[high] - sums[low]) / (high - low)
