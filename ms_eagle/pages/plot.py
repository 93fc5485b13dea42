"""Small plots as SVG text: axes, histograms, dots, lines and bars, coloured by classes of ``svg_plot.css``.

Every function returns one ``<svg>`` element that scales with its container; `standalone` makes a file of it.
Coordinates in data units become user units by a `Frame`; y grows upwards in data and downwards in SVG.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

WIDTH, HEIGHT = 440, 260
_LEFT, _RIGHT, _BOTTOM = 46, 14, 42
_LABEL_ROW, _CHARACTER = 16, 7.2  # height of a row of labels; width of a character, with room to spare


@dataclass(frozen=True)
class Marker:
    """A vertical line with a label above the plot."""

    x: float
    label: str
    kind: str = "quantile"


@dataclass(frozen=True)
class Series:
    """A named line; ``low`` and ``high``, where given, are drawn as whiskers."""

    name: str
    points: Sequence[tuple[float, float]]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def text(value: object) -> str:
    """Escaped for SVG and HTML."""
    return html.escape(str(value))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= count)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A tick's number, without zeros that say nothing."""
    return f"{value:.10g}" if abs(value) >= 1e-9 else "0"


class Frame:
    """Axes: ranges in data units and where they lie in the picture."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        top: float = 14,
        log_x: bool = False,
        left: float = _LEFT,
    ) -> None:
        self.log_x = log_x
        self._x = tuple(math.log2(v) for v in x) if log_x else x
        self._y, self._top, self._left = y, top, left
        self._width, self._height = WIDTH - left - _RIGHT, HEIGHT - top - _BOTTOM

    def x(self, value: float) -> float:
        """User units of a data x."""
        value = math.log2(value) if self.log_x else value
        low, high = self._x
        return self._left + self._width * (value - low) / max(high - low, 1e-12)

    def y(self, value: float) -> float:
        """User units of a data y."""
        low, high = self._y
        return self._top + self._height * (1 - (value - low) / max(high - low, 1e-12))

    def axes(
        self, x_label: str, y_label: str, x_ticks: Sequence[tuple[float, str]], whole: bool = False
    ) -> str:
        """Grid, numbers and names of both axes; ``whole``: y counts things."""
        parts = []
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        for value in ticks(*self._y, count=5):
            if whole and abs(value - round(value)) > 1e-9:
                continue
            y = self.y(value)
            parts.append(f'<path class="grid" d="M{self._left} {y:.1f}H{right}"/>')
            parts.append(f'<text class="tick" x="{self._left - 6}" y="{y + 4:.1f}" text-anchor="end">')
            parts.append(f"{short(value)}</text>")
        for value, label in x_ticks:
            x = self.x(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">')
            parts.append(f"{text(label)}</text>")
        parts.append(f'<path class="axis" d="M{self._left} {bottom}H{right}"/>')
        middle = (self._left + right) / 2
        parts.append(f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 7}" text-anchor="middle">')
        parts.append(f"{text(x_label)}</text>")
        turned = (self._top + bottom) / 2
        parts.append(f'<text class="name" transform="translate(12 {turned:.0f})rotate(-90)"')
        parts.append(f' text-anchor="middle">{text(y_label)}</text>')
        return "".join(parts)

    def bar(self, left: float, right: float, top: float, kind: str, title: str) -> str:
        """A column from 0 to ``top`` between two data x."""
        x, width = self.x(left) + 0.75, max(1.0, self.x(right) - self.x(left) - 1.5)
        y = self.y(top)
        height = max(0.0, self.y(0) - y)
        return (
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' rx="1.5"><title>{text(title)}</title></rect>'
        )

    def across(self, value: float, label: str) -> str:
        """A dashed horizontal line at a data y, named at its right end."""
        y, right = self.y(value), WIDTH - _RIGHT
        return (
            f'<path class="reference" d="M{self._left} {y:.1f}H{right}"/>'
            f'<text class="note" x="{right}" y="{y + 14:.1f}" text-anchor="end">{text(label)}</text>'
        )

    def markers(self, marks: Sequence[Marker]) -> str:
        """Vertical lines with labels above, in as many rows as they need."""
        bottom, parts = HEIGHT - _BOTTOM, []
        for mark, row, at in zip(marks, *_placed(self, marks), strict=True):
            x, y = self.x(mark.x), 12 + row * _LABEL_ROW
            parts.append(f'<path class="mark {mark.kind}" d="M{x:.1f} {y + 4}V{bottom}"/>')
            parts.append(f'<text class="label {mark.kind}" x="{at:.1f}" y="{y}" text-anchor="middle">')
            parts.append(f"{text(mark.label)}</text>")
        return "".join(parts)


def _placed(frame: Frame, marks: Sequence[Marker]) -> tuple[list[int], list[float]]:
    """A row and an x for each label, so that none lies on another or outside the picture."""
    taken: list[list[tuple[float, float]]] = []
    rows, places = [], []
    for mark in marks:
        half = len(mark.label) * _CHARACTER / 2 + 3
        x = min(max(frame.x(mark.x), half), WIDTH - half)
        row = 0
        while row < len(taken) and any(x - half < end and x + half > begin for begin, end in taken[row]):
            row += 1
        if row == len(taken):
            taken.append([])
        taken[row].append((x - half, x + half))
        rows.append(row)
        places.append(x)
    return rows, places


def label_rows(x: tuple[float, float], marks: Sequence[Marker]) -> int:
    """How many rows the labels of ``marks`` need over an axis of range ``x``."""
    rows, _ = _placed(Frame(x, (0, 1)), marks)
    return max(rows, default=-1) + 1


def svg(name: str, content: str, height: float = HEIGHT) -> str:
    """The element around ``content``; ``name`` is what a screen reader says."""
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{text(name)}"'
        f' xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def histogram(
    name: str,
    counts: Sequence[tuple[float, float, int]],
    x_label: str,
    marks: Sequence[Marker] = (),
    below: float | None = None,
    unit: str = "turns",
) -> str:
    """Columns of ``(from, to, count)``; those that end at or before ``below`` are coloured as a warning."""
    x = (counts[0][0], counts[len(counts) - 1][1])
    top = 16 + _LABEL_ROW * label_rows(x, marks)
    frame = Frame(x, (0, max(1, max(count for *_, count in counts))), top=top)
    bars = "".join(
        frame.bar(
            left,
            right,
            count,
            "bar warn" if below is not None and right <= below + 1e-9 else "bar good",
            f"{short(round(left, 4))} to {short(round(right, 4))}: {count} {unit}",
        )
        for left, right, count in counts
    )
    labels = [(value, short(value)) for value in ticks(*x)]
    return svg(name, frame.axes(x_label, unit, labels, whole=True) + bars + frame.markers(marks))


def columns(
    name: str, values: Sequence[tuple[str, float, str]], x_label: str, y_label: str, top: float | None = None
) -> str:
    """One column for each ``(label, value, what a tooltip says)``."""
    highest = max([value for _, value, _ in values], default=0) if top is None else top
    frame = Frame((-0.5, len(values) - 0.5), (0, highest or 1))
    bars = "".join(
        frame.bar(i - 0.36, i + 0.36, value, "bar good", why) for i, (_, value, why) in enumerate(values)
    )
    labels = [(i, label) for i, (label, *_) in enumerate(values)]
    return svg(name, frame.axes(x_label, y_label, labels) + bars)


def scatter(
    name: str,
    groups: Sequence[tuple[str, Sequence[tuple[float, float, str]]]],
    x_label: str,
    y_label: str,
    reference: tuple[float, str] | None = None,
) -> str:
    """Dots ``(x, y, what a tooltip says)``, coloured by group; a legend where there are several groups."""
    points = [point for _, group in groups for point in group]
    frame = Frame(
        padded([x for x, *_ in points], zero=True),
        padded([y for _, y, _ in points] + ([reference[0]] if reference else []), zero=True),
        top=14 + _legend_height([group for group, _ in groups]),
    )
    dots = "".join(
        f'<circle class="dot s{i}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5">'
        f"<title>{text(why)}</title></circle>"
        for i, (_, group) in enumerate(groups)
        for x, y, why in group
    )
    line = frame.across(*reference) if reference else ""
    labels = [(value, short(value)) for value in ticks(*frame._x)]
    return svg(
        name,
        frame.axes(x_label, y_label, labels) + dots + line + _legend([group for group, _ in groups]),
    )


def lines(
    name: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    reference: tuple[float, str] | None = None,
) -> str:
    """Lines through points, with whiskers where a series has them; x on a scale of doublings if asked."""
    xs = sorted({x for each in series for x, _ in each.points})
    ys = [y for each in series for _, y in each.points]
    ys += [v for each in series for bound in (each.low, each.high) if bound for v in bound]
    ys += [reference[0]] if reference else []
    span = (xs[0], xs[len(xs) - 1]) if len(xs) > 1 else (xs[0] * 0.5, xs[0] * 1.5)
    frame = Frame(span, padded(ys, zero=True), top=14 + _legend_height([s.name for s in series]), log_x=log_x)
    parts = []
    for i, each in enumerate(series):
        aside = (i - (len(series) - 1) / 2) * 4  # so that whiskers do not lie on each other
        path = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in each.points)
        parts.append(f'<path class="line s{i}" d="M{path}"/>')
        for place, (x, y) in enumerate(each.points):
            if each.low and each.high:
                low, high = frame.y(each.low[place]), frame.y(each.high[place])
                at = frame.x(x) + aside
                parts.append(f'<path class="whisker s{i}" d="M{at:.1f} {low:.1f}V{high:.1f}"/>')
            parts.append(
                f'<circle class="dot s{i}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"><title>'
                f"{text(each.name)}: {short(x)}, {y:.3g}</title></circle>"
            )
    line = frame.across(*reference) if reference else ""
    labels = [(x, short(x)) for x in xs] if log_x or len(xs) <= 8 else [(v, short(v)) for v in ticks(*span)]
    body = frame.axes(x_label, y_label, labels) + "".join(parts) + line
    return svg(name, body + _legend([s.name for s in series]))


def bars(name: str, values: Sequence[tuple[str, float, str, str]], unit: str) -> str:
    """Horizontal bars of ``(label, value, kind, what a tooltip says)``, each with its number."""
    row, left = 26, 10 + max(len(label) for label, *_ in values) * 7.6
    most = max(value for _, value, _, _ in values) or 1
    room = WIDTH - left - 76
    parts = []
    for i, (label, value, kind, why) in enumerate(values):
        y = 8 + i * row
        width = max(1.5, room * value / most)
        parts.append(
            f'<text class="row" x="{left - 8:.0f}" y="{y + 14}" text-anchor="end">{text(label)}</text>'
            f'<rect class="bar {kind}" x="{left:.0f}" y="{y + 2}" width="{width:.1f}" height="17" rx="3">'
            f"<title>{text(why)}</title></rect>"
            f'<text class="row" x="{left + width + 7:.1f}" y="{y + 14}">{value:.3g} {text(unit)}</text>'
        )
    return svg(name, "".join(parts), 12 + row * len(values))


def padded(values: Sequence[float], zero: bool = False) -> tuple[float, float]:
    """A range around values with some room, from 0 if ``zero`` and none is below."""
    low, high = min(values, default=0), max(values, default=1)
    if zero and low >= 0:
        return 0.0, (high or 1) * 1.08
    room = 0.06 * max(high - low, 1e-9)
    return low - room, high + room


def _legend_rows(names: Sequence[str]) -> list[list[tuple[int, str, float]]]:
    rows: list[list[tuple[int, str, float]]] = [[]]
    at = float(_LEFT)
    for i, name in enumerate(names):
        width = 22 + len(name) * _CHARACTER + 12
        if rows[len(rows) - 1] and at + width > WIDTH:
            rows.append([])
            at = float(_LEFT)
        rows[len(rows) - 1].append((i, name, at))
        at += width
    return rows


def _legend_height(names: Sequence[str]) -> int:
    return _LABEL_ROW * len(_legend_rows(names)) if len(names) > 1 else 0


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    return "".join(
        f'<circle class="dot s{i}" cx="{at + 6:.0f}" cy="{8 + _LABEL_ROW * row}" r="4"/>'
        f'<text class="tick" x="{at + 15:.0f}" y="{12 + _LABEL_ROW * row}">{text(name)}</text>'
        for row, entries in enumerate(_legend_rows(names))
        for i, name, at in entries
    )


def style() -> str:
    """The style sheet of plots, colours for light and dark included."""
    return resources.files("ms_eagle.pages").joinpath("plot.css").read_text(encoding="utf-8")


def standalone(plot: str) -> str:
    """A plot as a file of its own, on a background of its own."""
    head, _, rest = plot.partition(">")
    return f'{head}><style>{style()}</style><rect class="ground" width="100%" height="100%"/>{rest}\n'
