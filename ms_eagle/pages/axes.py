"""Axes of a plot: ranges in data units, where they lie in the picture, and what is drawn on them.

y grows upwards in data and downwards in SVG.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ms_eagle.pages.markup import element

WIDTH, HEIGHT = 440, 260
LEFT, RIGHT, BOTTOM = 52, 14, 42
LABEL_ROW, CHARACTER = 16, 7.2  # height of a row of labels; width of a character, with room to spare


@dataclass(frozen=True)
class Marker:
    """A vertical line with a label above the plot."""

    x: float
    label: str
    kind: str = "quantile"


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= count)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A tick's number, without zeros that say nothing: ``1.5``, ``4e-4``."""
    if 1e-9 <= abs(value) < 1e-3:
        digits, power = f"{value:.6e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.10g}" if abs(value) >= 1e-9 else "0"


def padded(values: Sequence[float]) -> tuple[float, float]:
    """A range around values with some room, from 0 if none is below."""
    low, high = min(values, default=0), max(values, default=1)
    if low >= 0:
        return 0.0, (high or 1) * 1.08
    room = 0.06 * max(high - low, 1e-9)
    return low - room, high + room


class Frame:
    """Ranges of x and y; ``top``: user units above them; ``log_x``: a scale of doublings."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, top: float = 14, log_x: bool = False
    ) -> None:
        self.log_x = log_x
        self._x = tuple(math.log2(v) for v in x) if log_x else x
        self._y, self._top = y, top
        self._width, self._height = WIDTH - LEFT - RIGHT, HEIGHT - top - BOTTOM

    def x(self, value: float) -> float:
        """User units of a data x."""
        value = math.log2(value) if self.log_x else value
        low, high = self._x
        return LEFT + self._width * (value - low) / max(high - low, 1e-12)

    def y(self, value: float) -> float:
        """User units of a data y."""
        low, high = self._y
        return self._top + self._height * (1 - (value - low) / max(high - low, 1e-12))

    def axes(self, x_label: str, y_label: str, x_ticks: Sequence[float], whole: bool = False) -> Markup:
        """Grid, numbers and names of both axes; ``whole``: y counts things."""
        parts = []
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value in ticks(*self._y, count=5):
            if whole and abs(value - round(value)) > 1e-9:
                continue
            y = self.y(value)
            parts.append(element("path", class_="grid", d=f"M{LEFT} {y:.1f}H{right}"))
            parts.append(_text("tick", LEFT - 6, y + 4, short(value), "end"))
        for value in x_ticks:
            x = self.x(value)
            parts.append(element("path", class_="grid", d=f"M{x:.1f} {bottom}v4"))
            parts.append(_text("tick", x, bottom + 17, short(value)))
        parts.append(element("path", class_="axis", d=f"M{LEFT} {bottom}H{right}"))
        parts.append(_text("name", (LEFT + right) / 2, HEIGHT - 7, x_label))
        turned = f"translate(12 {(self._top + bottom) / 2:.0f})rotate(-90)"
        parts.append(element("text", y_label, class_="name", transform=turned, text_anchor="middle"))
        return Markup("").join(parts)

    def bar(self, left: float, right: float, top: float, kind: str, note: str) -> Markup:
        """A column from 0 to ``top`` between two data x."""
        x, y = self.x(left) + 0.75, self.y(top)
        width, height = max(1.0, self.x(right) - self.x(left) - 1.5), max(0.0, self.y(0) - y)
        title = element("title", note)
        return element("rect", title, class_=f"bar {kind}", x=x, y=y, width=width, height=height, rx=1.5)

    def dot(self, x: float, y: float, kind: str, note: str) -> Markup:
        """A dot at a data point."""
        return element(
            "circle", element("title", note), class_=f"dot {kind}", cx=self.x(x), cy=self.y(y), r=3.5
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> Markup:
        """A line through data points."""
        way = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return element("path", class_=kind, d=f"M{way}")

    def across(self, value: float, label: str) -> Markup:
        """A dashed horizontal line at a data y, named at its right end."""
        y, right = self.y(value), WIDTH - RIGHT
        line = element("path", class_="reference", d=f"M{LEFT} {y:.1f}H{right}")
        return line + _text("note", right, y + 14, label, "end")

    def markers(self, markers: Sequence[Marker], above: float = 0) -> Markup:
        """Vertical lines with labels, in as many rows as they need, ``above`` user units from the top."""
        lines, labels = [], []
        for marker, row, place in zip(markers, *_label_places(self, markers), strict=True):
            y = above + 12 + row * LABEL_ROW
            line = f"M{self.x(marker.x):.1f} {y + 4:.0f}V{HEIGHT - BOTTOM}"
            lines.append(element("path", class_=f"mark {marker.kind}", d=line))
            labels.append(_text(f"label {marker.kind}", place, y, marker.label))
        return Markup("").join(lines + labels)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return element("text", text, class_=kind, x=float(x), y=float(y), text_anchor=anchor)


def _label_places(frame: Frame, markers: Sequence[Marker]) -> tuple[list[int], list[float]]:
    """A row and an x for each label, so that none lies on another or outside the picture."""
    taken: list[list[tuple[float, float]]] = []
    rows, places = [], []
    for marker in markers:
        half = len(marker.label) * CHARACTER / 2 + 3
        x = min(max(frame.x(marker.x), half), WIDTH - half)
        row = 0
        while row < len(taken) and any(x - half < end and x + half > begin for begin, end in taken[row]):
            row += 1
        if row == len(taken):
            taken.append([])
        taken[row].append((x - half, x + half))
        rows.append(row)
        places.append(x)
    return rows, places


def label_rows(x: tuple[float, float], markers: Sequence[Marker]) -> int:
    """How many rows the labels of ``markers`` need over an axis of range ``x``."""
    rows, _ = _label_places(Frame(x, (0, 1)), markers)
    return max(rows, default=-1) + 1
