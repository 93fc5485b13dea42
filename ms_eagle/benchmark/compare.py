"""Two runs side by side, each with its spread: does one really differ from the other?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ms_eagle.benchmark import charts, turn_log
from ms_eagle.benchmark.page import document, table
from ms_eagle.benchmark.run import SUMMARY
from ms_eagle.benchmark.text import number
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.errors import UserError
from ms_eagle.pages import plot as svg_plot
from ms_eagle.pages.plot import Series, text
from ms_eagle.system import json_file

_RESAMPLES, _SEED = 2000, 0
_PERCENT = (2.5, 97.5)


@dataclass(frozen=True)
class Finished:
    """A run read back: its name, its summary and its measured turns by name."""

    name: str
    summary: Mapping[str, Any]
    turns: Mapping[str, Record]


@dataclass(frozen=True)
class Row:
    """One figure of both runs.

    Attributes:
        name: of the figure.
        a, b: mean and 95 % interval of each, None where there is no figure.
        change: of b over a (or b minus a) on the turns that both have, likewise.
    """

    name: str
    a: tuple[float, float, float] | None
    b: tuple[float, float, float] | None
    change: tuple[float, float, float] | None


def read(directory: Path) -> Finished:
    """Read a finished run.

    Raises:
        UserError: there is none.
    """
    if not (directory / SUMMARY).exists():
        raise UserError(
            f"--compare {directory}: no {SUMMARY} there; expected the --out of a finished benchmark"
        )
    summary = json_file.read_object(directory / SUMMARY)
    if "speedup" not in summary:
        raise UserError(f"--compare {directory}: the summary of a sweep; name one of its points")
    turns = {r["turn_name"]: r for r in turn_log.read(directory / turn_log.MERGED) if "error" not in r}
    return Finished(str(directory), summary, turns)


def compare(a: Finished, b: Finished) -> list[Row]:
    """The main figures of both runs with intervals, and how they change on the turns that both have."""
    both = [name for name in a.turns if name in b.turns]

    def row(name: str, of: Callable[[Record], float | None], ratio: bool) -> Row:
        pairs = [(of(a.turns[key]), of(b.turns[key])) for key in both]
        changes = [
            y / x if ratio else y - x
            for x, y in pairs
            if x is not None and y is not None and (x or not ratio)
        ]
        return Row(
            name,
            *(interval([v for v in map(of, run.turns.values()) if v is not None]) for run in (a, b)),
            interval(changes),
        )

    return [
        row("speed-up", lambda turn: turn["speedup"], True),
        row("speed-up, with the prompt", lambda turn: turn["speedup_end_to_end"], True),
        row("teacher alone, tokens a second", lambda turn: turn["teacher"]["tokens_per_second"], True),
        row("with speculation, tokens a second", lambda turn: turn["speculative"]["tokens_per_second"], True),
        row("accept_L of a turn", _accept, False),
    ]


def _accept(turn: Record) -> float | None:
    return float(np.mean(turn["accept_L"])) if turn["accept_L"] else None


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean of turns and its 95 % interval, from 2000 resamples of the turns (bootstrap)."""
    if not values:
        return None
    numbers = np.asarray(values, np.float64)
    picks = np.random.default_rng(_SEED).integers(0, len(numbers), (_RESAMPLES, len(numbers)))
    low, high = np.percentile(numbers[picks].mean(1), _PERCENT)
    return float(numbers.mean()), float(low), float(high)


def caveats(a: Finished, b: Finished) -> list[str]:
    """What makes the two runs less than comparable."""
    found = []
    one, other = (set(run.turns) for run in (a, b))
    if one != other:
        found.append(
            f"{len(one & other)} turns are in both; {len(one - other)} in A alone, {len(other - one)} in B"
        )
    for key in ("prompts", "machine", "code"):
        if a.summary["manifest"].get(key) != b.summary["manifest"].get(key):
            found.append(f"the runs differ in {key}")
    changed = [key for key in sorted(one & other) if a.turns[key]["token_ids"] != b.turns[key]["token_ids"]]
    if changed:
        found.append(f"the teacher's own answers differ in {len(changed)} turns, such as {changed[0]}")
    return found


def settings(a: Finished, b: Finished) -> list[tuple[str, Any, Any]]:
    """Configuration keys that differ."""
    one, other = (run.summary["manifest"]["config"] for run in (a, b))
    return [
        (f"{section}.{key}", one[section].get(key), other.get(section, {}).get(key))
        for section in one
        for key in one[section]
        if one[section].get(key) != other.get(section, {}).get(key)
    ]


def lines(a: Finished, b: Finished) -> list[str]:
    """The comparison for a terminal."""
    found = [f"A  {a.name}", f"B  {b.name}"]
    found += [f"   {name}: {x} in A, {y} in B" for name, x, y in settings(a, b)]
    found += [f"   note: {caveat}" for caveat in caveats(a, b)]
    found.append(
        f"{'mean over turns [95 % interval]':34} {'A':>22} {'B':>22} {'B against A, same turns':>26}"
    )
    for row in compare(a, b):
        change = "-" if row.change is None else _cell(row.change, 3)
        found.append(f"{row.name:34} {_cell(row.a):>22} {_cell(row.b):>22} {change:>26}")
    for key in ("p1", "p10", "p50", "p90", "p99"):
        one, other = (number(run.summary["speedup"][key]) for run in (a, b))
        found.append(f"{'speed-up ' + key:34} {one:>22} {other:>22}")
    one, other = (number(run.summary["tokens_match"], 3) for run in (a, b))
    found.append(f"{'identical tokens':34} {one:>22} {other:>22}")
    return found


def _cell(value: tuple[float, float, float] | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    mean, low, high = (number(each, digits) for each in value)
    return f"{mean} [{low}, {high}]"


def page(a: Finished, b: Finished) -> str:
    """The comparison as an HTML page."""
    title = f"{Path(a.name).name} and {Path(b.name).name}"
    rows = [
        (r.name, _cell(r.a), _cell(r.b), "-" if r.change is None else _cell(r.change, 3))
        for r in compare(a, b)
    ]
    quantiles = ("p1", "p10", "p50", "p90", "p99")
    rows += [(f"speed-up {q}", *(number(run.summary["speedup"][q]) for run in (a, b)), "") for q in quantiles]
    rows.append(("identical tokens", *(number(run.summary["tokens_match"], 3) for run in (a, b)), ""))
    heads = ("mean over turns [95 % interval]", "A", "B", "B against A, same turns")
    notices = "".join(f'<p class="notice">{text(each)}</p>' for each in caveats(a, b))
    changed = [(name, str(x), str(y)) for name, x, y in settings(a, b)]
    differs = f"<section><h2>Settings that differ</h2>{table(('key', 'A', 'B'), changed)}</section>"
    plots = [
        charts.figure(
            f"Speed-up by turn, {label}",
            f"{len(run.turns)} turns, {charts.settings(run.summary)}",
            charts.speedup_plot(charts.values(list(run.turns.values()), "speedup"), run.summary["speedup"]),
        )
        for label, run in (("A", a), ("B", b))
        if run.turns
    ]
    curves = [
        Series(label, [(d["depth"], d["share"]) for d in run.summary["acceptance_by_depth"]])
        for label, run in (("A", a), ("B", b))
        if run.summary["acceptance_by_depth"]
    ]
    if curves:
        plot = svg_plot.lines("Acceptance by depth", curves, "depth of the draft token", "share accepted")
        plots.append(charts.figure("Acceptance by depth", "share of all cycles", plot))
    body = (
        f'<header><p class="kicker">ms_eagle benchmark, two runs</p><h1>{text(title)}</h1>'
        f'<p class="lead">A is {text(a.name)}, B is {text(b.name)}.</p>{notices}</header><main>'
        f'<section><h2>Figures</h2><p class="meta">Intervals are of the mean over turns, by resampling them.'
        f"</p>{table(heads, rows)}</section>{differs if changed else ''}"
        f'<section class="charts">{"".join(plots)}</section></main>'
    )
    return document(title, body, {"A": a.summary["manifest"], "B": b.summary["manifest"]})
