"""Small plots as SVG: columns, lines and dots, coloured by classes of ``plot.css``.

A plot in a page scales with its container; `standalone` makes a file, of a `sheet` of several too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ms_eagle.pages import axes
from ms_eagle.pages.axes import HEIGHT, LABEL_ROW, WIDTH, Frame, Marker, short
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
        box = f"0 0 {self.width:g} {self.height:g}"
        space = "http://www.w3.org/2000/svg"
        return element(
            "svg", self.content, class_="plot", viewBox=box, role="img", aria_label=self.name, xmlns=space
        )


@dataclass(frozen=True)
class Series:
    """A named line, or dots.

    Attributes:
        low, high: of each point, drawn as whiskers.
        notes: what the tooltips of the points say; their values where it is None.
        line, dots: what is drawn; lines of many points have no dots.
        faint: draw the line thin, behind one that sums it up.
    """

    name: str
    points: Sequence[tuple[float, float]]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    notes: Sequence[str] | None = None
    line: bool = True
    dots: bool = True
    faint: bool = False


def columns(
    name: str,
    values: Sequence[tuple[float, float, float, str, str]],
    x_label: str,
    y_label: str,
    *,
    markers: Sequence[Marker] = (),
    whole: bool = False,
) -> Plot:
    """Columns ``(from, to, value, colour's class, what a tooltip says)``; ``whole``: they count things."""
    span = (values[0][0], values[-1][1])
    top = 14 + LABEL_ROW * axes.label_rows(span, markers)
    frame = Frame(span, (0, max(value for _, _, value, _, _ in values) or 1), top=top)
    parts = [frame.axes(x_label, y_label, axes.ticks(*span), whole)]
    parts += [frame.bar(*value) for value in values]
    return Plot(name, Markup("").join([*parts, frame.markers(markers)]))


def lines(
    name: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    from_zero: bool = False,
    reference: tuple[float, str] | None = None,
    y: tuple[float, float] | None = None,
    markers: Sequence[Marker] = (),
) -> Plot:
    """Lines or dots of several series, with a legend where there are several.

    Args:
        log_x: x on a scale of doublings; from_zero: x begins at 0, with room after the last point.
        reference: a value of y and what it means.
        y: the range of y; from the values where it is None.
    """
    xs = sorted({x for each in series for x, _ in each.points}) or [0.0]
    values = [value for each in series for _, value in each.points] + ([reference[0]] if reference else [])
    values += [v for each in series for bound in (each.low, each.high) if bound for v in bound]
    span = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] * 0.5, xs[0] * 1.5 or 1.0)
    span = axes.padded(xs) if from_zero else span
    legend, above = _legend([each.name for each in series])
    top = 14 + above + LABEL_ROW * axes.label_rows(span, markers)
    frame = Frame(span, y or axes.padded(values), top=top, log_x=log_x)
    ticks = xs if not from_zero and (log_x or len(xs) <= 8) else axes.ticks(*span)
    parts = [frame.axes(x_label, y_label, ticks)]
    for i, each in enumerate(series):
        aside = (i - (len(series) - 1) / 2) * 4  # so that whiskers do not lie on each other
        parts += _series(frame, each, f"s{i}", aside)
    parts += [frame.across(*reference)] if reference else []
    return Plot(name, Markup("").join([*parts, frame.markers(markers, above), legend]))


def _series(frame: Frame, series: Series, kind: str, aside: float) -> list[Markup]:
    parts = []
    if series.line and series.points:
        parts.append(frame.path(series.points, f"line {kind}{' faint' if series.faint else ''}"))
    for (x, _), low, high in zip(series.points, series.low or (), series.high or (), strict=False):
        ends = f"M{frame.x(x) + aside:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        parts.append(element("path", class_=f"whisker {kind}", d=ends))
    if series.dots:
        notes = series.notes or [f"{series.name}: {short(x)}, {y:.3g}" for x, y in series.points]
        parts += [frame.dot(x, y, kind, note) for (x, y), note in zip(series.points, notes, strict=True)]
    return parts


def _legend(names: Sequence[str]) -> tuple[Markup, float]:
    """A dot and a name for each of several series, in as many rows as they need; the height of these."""
    if len(names) < 2:
        return Markup(""), 0
    parts, x, y = [], float(axes.LEFT), 8.0
    for i, name in enumerate(names):
        width = 34 + len(name) * axes.CHARACTER
        if x > axes.LEFT and x + width > WIDTH:
            x, y = float(axes.LEFT), y + LABEL_ROW
        parts.append(element("circle", class_=f"dot s{i}", cx=x + 6, cy=y, r=4))
        parts.append(element("text", name, class_="tick", x=x + 15, y=y + 4))
        x += width
    return Markup("").join(parts), y + 8


def sheet(title: str, plots: Sequence[Plot], across: int = 2) -> Plot:
    """Several plots under their names in one picture, ``across`` of them side by side."""
    head, caption, gap = 34, 22, 14
    step_x, step_y = WIDTH + gap, HEIGHT + caption + gap
    parts = [element("text", title, class_="title", x=gap, y=24)]
    for i, each in enumerate(plots):
        place = f"translate({gap + i % across * step_x} {head + i // across * step_y})"
        name = element("text", each.name, class_="caption", x=2, y=14)
        content = element("g", each.content, transform=f"translate(0 {caption})")
        parts.append(element("g", name, content, transform=place))
    rows = -(-len(plots) // across)
    return Plot(title, Markup("").join(parts), gap + across * step_x, head + rows * step_y)


def standalone(plot: Plot) -> str:
    """A plot as a file of its own, on a background of its own."""
    ground = element("rect", class_="ground", width="100%", height="100%")
    content = element("style", asset("plot.css")) + ground + plot.content
    return Plot(plot.name, content, plot.width, plot.height).__html__() + "\n"
