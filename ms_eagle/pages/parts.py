"""What pages are made of; ``templates/parts.html`` and ``report.html`` draw it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ms_eagle.pages.plot import Plot


class Card(NamedTuple):
    """A headline figure; ``kind`` is ``main``, ``tail`` or nothing."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


class Bar(NamedTuple):
    """A horizontal bar: its length, the number beside it, its colour (a class), what a tooltip says."""

    label: str
    value: float
    number: str
    kind: str
    note: str


class Figure(NamedTuple):
    """A plot, or bars whose longest is as wide as ``most``, under a caption that says what it is made of."""

    title: str
    note: str
    plot: Plot | None = None
    bars: Sequence[Bar] = ()
    most: float | None = None


class Section(NamedTuple):
    """A heading over a table whose first column names its rows, over figures, or over terms; else nothing.

    ``kind`` is ``error`` for what went wrong.
    """

    title: str
    note: str = ""
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figures: Sequence[Figure] = ()
    terms: Mapping[str, str] | None = None
    kind: str = ""


def facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What every page says of a run: device, model's format, tree, versions; null where it is not known."""
    tree, git, versions = manifest.get("tree"), manifest.get("git"), manifest.get("versions", {})
    return {
        "device": manifest.get("device"),
        "kernels": manifest.get("kernels"),
        "dtype": manifest.get("config", {}).get("model", {}).get("dtype"),
        "tree": tree and f"budget {tree['budget']}, depth {tree['depth']}, branch {tree['branch']}",
        "mindspore": versions.get("mindspore"),
        "ms_eagle": versions.get("ms_eagle"),
        "revision": git and f"{git['commit'][:12]}{', modified' if git['modified'] else ''}",
    }
