"""Small plots as SVG: histograms, columns, dots and lines, coloured by classes of ``plot.css``.

A plot in a page scales with its container; `standalone` and `sheet` make files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ms_eagle.pages.axes import (
    CHARACTER,
    HEIGHT,
    LABEL_ROW,
    LEFT,
    WIDTH,
    Frame,
    Marker,
    label_rows,
    padded,
    short,
    ticks,
)
from ms_eagle.pages.markup import element
from ms_eagle.pages.template import asset


@dataclass(frozen=True)
class Plot:
    """A picture; ``name`` is what a screen reader says, ``content`` its elements."""

    name: str
    content: Markup
    width: float = WIDTH
    height: float = HEIGHT

    def __html__(self) -> str:
        return element(
            "svg",
            self.content,
            class_="plot",
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=self.name,
            xmlns="http://www.w3.org/2000/svg",
        )


@dataclass(frozen=True)
class Series:
    """A named line.

    Attributes:
        low, high: of each point, drawn as whiskers where they are given.
        dots: mark every point; lines of many points have none.
        faint: draw it thin, behind a line that sums it up.
    """

    name: str
    points: Sequence[tuple[float, float]]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dots: bool = True
    faint: bool = False


def histogram(
    name: str,
    counts: Sequence[tuple[float, float, int]],
    x_label: str,
    markers: Sequence[Marker] = (),
    below: float | None = None,
    unit: str = "turns",
) -> Plot:
    """Columns of ``(from, to, count)``; those that end at or before ``below`` are coloured as a warning."""
    x = (counts[0][0], counts[-1][1])
    top = 16 + LABEL_ROW * label_rows(x, markers)
    frame = Frame(x, (0, max(1, max(count for *_, count in counts))), top=top)
    bars = [
        frame.bar(
            left,
            right,
            count,
            "warn" if below is not None and right <= below + 1e-9 else "good",
            f"{short(round(left, 4))} to {short(round(right, 4))}: {count} {unit}",
        )
        for left, right, count in counts
    ]
    axes = frame.axes(x_label, unit, [(value, short(value)) for value in ticks(*x)], whole=True)
    return Plot(name, Markup("").join([axes, *bars, frame.markers(markers)]))


def columns(name: str, values: Sequence[tuple[str, float, str]], x_label: str, y_label: str) -> Plot:
    """One column for each ``(label, value, what a tooltip says)``."""
    highest = max([value for _, value, _ in values], default=0)
    frame = Frame((-0.5, len(values) - 0.5), (0, highest or 1))
    bars = [frame.bar(i - 0.36, i + 0.36, value, "good", note) for i, (_, value, note) in enumerate(values)]
    labels = [(i, label) for i, (label, *_) in enumerate(values)]
    return Plot(name, Markup("").join([frame.axes(x_label, y_label, labels), *bars]))


def scatter(
    name: str,
    groups: Sequence[tuple[str, Sequence[tuple[float, float, str]]]],
    x_label: str,
    y_label: str,
    reference: tuple[float, str] | None = None,
) -> Plot:
    """Dots ``(x, y, what a tooltip says)``, coloured by group; a legend where there are several groups."""
    points = [point for _, group in groups for point in group]
    names = [group for group, _ in groups]
    span = padded([x for x, *_ in points])
    y = padded([y for _, y, _ in points] + ([reference[0]] if reference else []))
    frame = Frame(span, y, top=14 + _legend_height(names))
    parts = [frame.axes(x_label, y_label, [(value, short(value)) for value in ticks(*span)])]
    parts += [frame.dot(x, y, f"s{i}", note) for i, (_, group) in enumerate(groups) for x, y, note in group]
    parts += [frame.across(*reference)] if reference else []
    return Plot(name, Markup("").join([*parts, _legend(names)]))


def lines(
    name: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    reference: tuple[float, str] | None = None,
    y: tuple[float, float] | None = None,
    markers: Sequence[Marker] = (),
) -> Plot:
    """Lines through points, with whiskers where a series has them.

    Args:
        log_x: x on a scale of doublings.
        reference: a value of y and what it means.
        y: the range of y; from the values where it is None.
    """
    xs = sorted({x for each in series for x, _ in each.points}) or [0.0]
    if y is None:
        values = [value for each in series for _, value in each.points]
        values += [v for each in series for bound in (each.low, each.high) if bound for v in bound]
        y = padded(values + ([reference[0]] if reference else []))
    span = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] * 0.5, xs[0] * 1.5 or 1.0)
    above = _legend_height([each.name for each in series])
    top = 14 + above + LABEL_ROW * label_rows(span, markers)
    frame = Frame(span, y, top=top, log_x=log_x)
    labels = [(x, short(x)) for x in xs] if log_x or len(xs) <= 8 else [(v, short(v)) for v in ticks(*span)]
    parts = [frame.axes(x_label, y_label, labels)]
    for i, each in enumerate(series):
        aside = (i - (len(series) - 1) / 2) * 4  # so that whiskers do not lie on each other
        parts += _line(frame, each, f"s{i}", aside)
    parts += [frame.across(*reference)] if reference else []
    legend = _legend([each.name for each in series])
    return Plot(name, Markup("").join([*parts, frame.markers(markers, above), legend]))


def _line(frame: Frame, series: Series, kind: str, aside: float) -> list[Markup]:
    if not series.points:
        return []
    parts = [frame.path(series.points, f"line {kind}{' faint' if series.faint else ''}")]
    for (x, _), low, high in zip(series.points, series.low or (), series.high or (), strict=False):
        ends = f"M{frame.x(x) + aside:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        parts.append(element("path", class_=f"whisker {kind}", d=ends))
    if series.dots:
        parts += [frame.dot(x, y, kind, f"{series.name}: {short(x)}, {y:.3g}") for x, y in series.points]
    return parts


def _legend_rows(names: Sequence[str]) -> list[list[tuple[int, str, float]]]:
    rows: list[list[tuple[int, str, float]]] = [[]]
    x = float(LEFT)
    for i, name in enumerate(names):
        width = 22 + len(name) * CHARACTER + 12
        if rows[-1] and x + width > WIDTH:
            rows.append([])
            x = float(LEFT)
        rows[-1].append((i, name, x))
        x += width
    return rows


def _legend_height(names: Sequence[str]) -> int:
    return LABEL_ROW * len(_legend_rows(names)) if len(names) > 1 else 0


def _legend(names: Sequence[str]) -> Markup:
    if len(names) < 2:
        return Markup("")
    return Markup("").join(
        element("circle", class_=f"dot s{i}", cx=x + 6, cy=8 + LABEL_ROW * row, r=4)
        + element("text", name, class_="tick", x=x + 15, y=12 + LABEL_ROW * row)
        for row, entries in enumerate(_legend_rows(names))
        for i, name, x in entries
    )


def sheet(title: str, plots: Sequence[Plot], across: int = 2) -> Plot:
    """Several plots under their names in one picture, ``across`` of them side by side."""
    head, caption, gap = 34, 22, 14
    step_x, step_y = WIDTH + gap, HEIGHT + caption + gap
    parts = [element("text", title, class_="title", x=gap, y=24)]
    for i, each in enumerate(plots):
        x, y = gap + i % across * step_x, head + i // across * step_y
        name = element("text", each.name, class_="caption", x=2, y=14)
        content = element("g", each.content, transform=f"translate(0 {caption})")
        parts.append(element("g", name, content, transform=f"translate({x} {y})"))
    return Plot(
        title, Markup("").join(parts), gap + across * step_x, head + -(-len(plots) // across) * step_y
    )


def standalone(plot: Plot) -> str:
    """A plot as a file of its own, on a background of its own."""
    ground = element("rect", class_="ground", width="100%", height="100%")
    content = element("style", asset("plot.css")) + ground + plot.content
    return Plot(plot.name, content, plot.width, plot.height).__html__() + "\n"
