"""Two runs side by side, each with its spread: does one really differ from the other?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ms_eagle.benchmark import charts, turn_log
from ms_eagle.benchmark.run import SUMMARY
from ms_eagle.benchmark.text import number
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.errors import UserError
from ms_eagle.pages.columns import aligned
from ms_eagle.pages.parts import Figure, Section
from ms_eagle.pages.plot import Series
from ms_eagle.pages.template import render
from ms_eagle.system import json_file

_RESAMPLES, _SEED = 2000, 0
_PERCENT = (2.5, 97.5)


@dataclass(frozen=True)
class Finished:
    """A run read back: its name, its summary and its measured turns by name."""

    name: str
    summary: Mapping[str, Any]
    turns: Mapping[str, Record]


class Row(NamedTuple):
    """One figure of both runs: mean and 95 % interval of each, None where there is none.

    ``change`` is of b over a (or b minus a) on the turns that both have.
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

    def row(name: str, of: Callable[[Record], float | None], ratio: bool = True) -> Row:
        pairs = [(of(a.turns[key]), of(b.turns[key])) for key in both]
        pairs = [(x, y) for x, y in pairs if x is not None and y is not None and (x or not ratio)]
        own = [interval([v for v in map(of, run.turns.values()) if v is not None]) for run in (a, b)]
        return Row(name, *own, interval([y / x if ratio else y - x for x, y in pairs]))

    return [
        row("speed-up", lambda turn: turn["speedup"]),
        row("speed-up, with the prompt", lambda turn: turn["speedup_end_to_end"]),
        row("teacher alone, tokens a second", lambda turn: turn["teacher"]["tokens_per_second"]),
        row("with speculation, tokens a second", lambda turn: turn["speculative"]["tokens_per_second"]),
        row("accept_L of a turn", charts.mean_accepted, ratio=False),
    ]


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
    caveats = []
    one, other = (set(run.turns) for run in (a, b))
    if one != other:
        caveats.append(
            f"{len(one & other)} turns are in both; {len(one - other)} in A alone, {len(other - one)} in B"
        )
    for key in ("prompts", "machine", "code"):
        if a.summary["manifest"].get(key) != b.summary["manifest"].get(key):
            caveats.append(f"the runs differ in {key}")
    changed = [key for key in sorted(one & other) if a.turns[key]["token_ids"] != b.turns[key]["token_ids"]]
    if changed:
        caveats.append(f"the teacher's own answers differ in {len(changed)} turns, such as {changed[0]}")
    return caveats


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
    return [
        f"A  {a.name}",
        f"B  {b.name}",
        *(f"   {name}: {x} in A, {y} in B" for name, x, y in settings(a, b)),
        *(f"   note: {caveat}" for caveat in caveats(a, b)),
        *aligned([_HEADS, *_rows(a, b)]),
    ]


_HEADS = ("mean over turns [95 % interval]", "A", "B", "B against A, same turns")


def _rows(a: Finished, b: Finished) -> list[tuple[str, str, str, str]]:
    """The figures of both runs as a table."""
    rows = [(row.name, _cell(row.a), _cell(row.b), _cell(row.change, 3)) for row in compare(a, b)]
    for q in ("p1", "p10", "p50", "p90", "p99"):
        rows.append((f"speed-up {q}", *(number(run.summary["speedup"][q]) for run in (a, b)), ""))
    return [*rows, ("identical tokens", *(number(run.summary["tokens_match"], 3) for run in (a, b)), "")]


def _cell(value: tuple[float, float, float] | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    mean, low, high = (number(each, digits) for each in value)
    return f"{mean} [{low}, {high}]"


def page(a: Finished, b: Finished) -> str:
    """The comparison as an HTML page."""
    figures, depths = [], []
    for label, run in (("A", a), ("B", b)):
        shares = [(each["depth"], each["share"]) for each in run.summary["acceptance_by_depth"]]
        depths += [Series(label, shares)] if shares else []
        if run.turns:
            note = f"{len(run.turns)} turns, {charts.settings(run.summary)}"
            plot = charts.speedup_plot(
                charts.values(list(run.turns.values()), "speedup"), run.summary["speedup"]
            )
            figures.append(Figure(f"Speed-up by turn, {label}", note, plot))
    if depths:
        figures.append(Figure("Acceptance by depth", "share of all cycles", charts.depth_plot(depths)))
    note = "Intervals are of the mean over turns, by resampling them."
    sections = [
        Section("Figures", note, _HEADS, _rows(a, b)),
        Section("Settings that differ", "", ("key", "A", "B"), settings(a, b)),
        Section("Plots", figures=figures),
    ]
    return render(
        "report.html",
        kicker="ms_eagle benchmark, two runs",
        title=f"{Path(a.name).name} and {Path(b.name).name}",
        lead=f"A is {a.name}, B is {b.name}.",
        notices=caveats(a, b),
        manifest={"A": a.summary["manifest"], "B": b.summary["manifest"]},
        sections=sections,
    )
