"""What pages are made of; ``templates/parts.html`` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ms_eagle.pages.plot import Plot


@dataclass(frozen=True)
class Card:
    """A headline figure; ``kind`` is ``main``, ``tail`` or nothing."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Bar:
    """A horizontal bar: its length, the number beside it, its colour (a class), what a tooltip says."""

    label: str
    value: float
    number: str
    kind: str
    note: str


@dataclass(frozen=True)
class Figure:
    """A plot, or bars, under a caption.

    Attributes:
        title, note: the caption; the note says what turns and settings the figure is made of.
        plot: the picture; None for bars.
        bars: drawn against ``most``, or against the longest of them where that is None.
    """

    title: str
    note: str
    plot: Plot | None = None
    bars: Sequence[Bar] = ()
    most: float | None = None

    @property
    def full(self) -> float:
        """The value of a bar as wide as there is room."""
        return self.most or max(bar.value for bar in self.bars) or 1.0


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: a table, figures, or terms with their meanings.

    Attributes:
        heads, rows: of the table; the first column names its rows.
        kind: ``error`` for what went wrong.
    """

    title: str
    note: str = ""
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figures: Sequence[Figure] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
