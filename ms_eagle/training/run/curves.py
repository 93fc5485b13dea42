"""The figures of a run as a picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ms_eagle.system import files

Rows = Sequence[Mapping[str, float]]


def draw(path: Path, steps: Rows, evaluations: Rows, title: str) -> None:
    """Write a PNG: loss, accuracy by unrolled step, acceptance length, acceptance by depth.

    Args:
        path: is replaced whole.
        steps, evaluations: rows by column, see ``metrics.Metrics``.
        title: of the picture.
    """
    with mpl.rc_context({"axes.grid": True, "grid.alpha": 0.3, "axes.titlesize": 11, "font.size": 10}):
        figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title)
        (loss, accuracy), (length, depths) = figure.subplots(2, 2)
        _loss(loss, steps)
        _lines(accuracy, steps, "accuracy_", "step", smooth=True)
        _titled(accuracy, "training: draft tokens that are the teacher's, by unrolled step", "share")
        _length(length, evaluations)
        _lines(depths, evaluations, "depth_", "depth", smooth=False)
        _titled(depths, "held out: drafts right up to each depth", "share")
        target = io.BytesIO()
        figure.savefig(target, format="png")
    files.write_bytes(path, target.getvalue())


def _loss(axes: Axes, steps: Rows) -> None:
    at, values = _column(steps, "step"), _column(steps, "loss")
    axes.plot(at, values, color="C0", alpha=0.25, linewidth=0.8, label="each step")
    axes.plot(at, smoothed(values), color="C0", label="smoothed")
    rate = axes.twinx()
    rate.plot(at, _column(steps, "rate"), color="C7", linestyle=":", label="learning rate (right)")
    rate.set_ylim(bottom=0)
    rate.grid(False)
    rate.ticklabel_format(axis="y", scilimits=(0, 0))
    handles = [*axes.get_lines()[1:], *rate.get_lines()]
    axes.legend(handles=handles, fontsize=9, loc="upper right")
    if values.size > 20:  # the first steps would flatten all the others
        axes.set_ylim(float(values.min()) * 0.95, float(np.quantile(values, 0.99)) * 1.05)
    _titled(axes, "training: loss", "loss")


def _length(axes: Axes, evaluations: Rows) -> None:
    at, values = _column(evaluations, "step"), _column(evaluations, "accept_L")
    axes.plot(at, values, marker="o", markersize=3, color="C2")
    if values.size:
        best = int(values.argmax())
        label = f"best: {values[best]:.3f} after step {at[best]:.0f}"
        axes.plot(at[best], values[best], marker="o", markersize=8, color="C3", linestyle="none", label=label)
        axes.legend(fontsize=9, loc="lower right")
    _titled(axes, "held out: simulated accept length (greedy chain)", "accept_L, tokens")


def _lines(axes: Axes, rows: Rows, prefix: str, what: str, *, smooth: bool) -> None:
    names = [name for name in (rows[0] if rows else {}) if name.startswith(prefix)]
    for name in names:
        values = _column(rows, name)
        heights = smoothed(values) if smooth else values
        marker = None if smooth else "o"
        label = f"{what} {name.removeprefix(prefix)}"
        axes.plot(_column(rows, "step"), heights, marker=marker, markersize=3, label=label)
    if names:
        axes.legend(fontsize=9, loc="best")
    axes.set_ylim(0, 1)


def _titled(axes: Axes, title: str, unit: str) -> None:
    axes.set(title=title, xlabel="steps", ylabel=unit)


def _column(rows: Rows, name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], float)


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of up to 25 values around each, ``[n]``; at the ends of those there are."""
    half = min(12, values.size // 20)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(values.size)
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, values.size)
    return (sums[high] - sums[low]) / (high - low)
