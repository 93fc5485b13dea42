"""The plots of a run, each with a caption that says what turns and settings it is made of."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_eagle.benchmark.figures import accepted, by_depth, values
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.pages import plot as svg_plot
from ms_eagle.pages.plot import Marker, Series, text

_STAGE_NOTES = {
    "draft": "the drafter's forwards, one a level",
    "tensorize": "the best candidates laid out as rows",
    "verify": "one teacher forward over all rows",
    "accept": "the longest chain of matches",
    "commit": "accepted rows move to their place",
    "extend": "the drafter reads the accepted tokens",
    "host": "between two cycles: text and bookkeeping",
}
_MOST_BINS = 28


def figure(title: str, note: str, plot: str) -> str:
    """A plot with its caption, as HTML."""
    return f"<figure><figcaption>{text(title)}<small>{text(note)}</small></figcaption>{plot}</figure>"


def settings(summary: Mapping[str, Any]) -> str:
    """The settings that every caption names."""
    manifest = summary["manifest"]
    config, tree = manifest["config"], manifest.get("tree") or {}
    temperature = config["generation"]["temperature"]
    parts = [
        "greedy" if temperature == 0 else f"temperature {temperature:g}",
        f"M={tree.get('budget', '?')} D={tree.get('depth', '?')} k={tree.get('branch', '?')}",
        f"{manifest.get('kernels', '?')} kernels",
        f"batch {config['execution']['batch_size']}",
    ]
    return ", ".join(parts)


def run_charts(summary: Mapping[str, Any], turns: Sequence[Record]) -> list[str]:
    """Every plot that the turns of a run give."""
    said = settings(summary)
    count = f"{len(turns)} turns, {said}"
    found = [speedups(summary, turns, count)]
    cycles = accepted(turns)
    if cycles:
        of = f"{len(cycles)} cycles of {count}"
        found += [acceptance(cycles, of), depths(cycles, of), against_acceptance(turns, count)]
    found += [against_length(turns, count), categories(summary, count)]
    profile = summary.get("profile")
    if profile:
        found.append(stages(profile, said))
        if profile.get("context"):
            found.append(contexts(profile["context"], said))
    return found


def speedups(summary: Mapping[str, Any], turns: Sequence[Record], note: str) -> str:
    """Distribution of the speed-up by turn, with the slow tail marked."""
    return figure(
        "Speed-up by turn",
        f"decoding, teacher alone over speculation; p1 and p10 are the slow tail; {note}",
        speedup_plot(values(turns, "speedup"), summary["speedup"]),
    )


def speedup_plot(speeds: Sequence[float], spread: Mapping[str, float]) -> str:
    """The plot of `speedups` alone."""
    marks = [Marker(spread["mean"], f"mean {spread['mean']:.2f}x", "mean")]
    for name in ("p1", "p10", "p50", "p90", "p99"):
        kind = "tail" if name in ("p1", "p10") else "quantile"
        marks.append(Marker(spread[name], f"{name} {spread[name]:.2f}x", kind))
    marks.sort(key=lambda mark: mark.x)
    return svg_plot.histogram("Distribution of the speed-up", bins(speeds), "speed-up", marks, below=1.0)


def bins(numbers: Sequence[float]) -> list[tuple[float, float, int]]:
    """Round bins around numbers, with a border at 1."""
    low, high = min([*numbers, 1.0]), max([*numbers, 1.0])
    step = next(s for s in (0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 1e9) if (high - low) / s <= _MOST_BINS)
    first = math.floor(low / step + 1e-9)
    last = max(math.floor(high / step + 1e-9), first)
    counts = Counter(min(math.floor(number / step + 1e-9), last) for number in numbers)
    return [(i * step, (i + 1) * step, counts[i]) for i in range(first, last + 1)]


def acceptance(cycles: Sequence[int], note: str) -> str:
    """Histogram of accepted tokens per cycle."""
    counts = Counter(cycles)
    rows = [
        (f"{a}", counts[a] / len(cycles), f"{counts[a]} cycles accepted {a} draft tokens")
        for a in range(max(cycles) + 1)
    ]
    mean = sum(cycles) / len(cycles)
    title = f"accept_L: {mean:.2f} draft tokens a cycle"
    plot = svg_plot.columns("Accepted draft tokens per cycle", rows, "accepted draft tokens", "cycles")
    return figure(title, f"without the bonus token (tau = {mean + 1:.2f}); share of {note}", plot)


def depths(cycles: Sequence[int], note: str) -> str:
    """Acceptance by depth: of all cycles, and of those that got to the depth before."""
    found = by_depth(cycles)
    series = [
        Series("of all cycles", [(d["depth"], d["share"]) for d in found]),
        Series("of those that accepted the depth before", [(d["depth"], d["given_parent"]) for d in found]),
    ]
    if not found:
        series = [Series("of all cycles", [(1, 0.0)])]
    plot = svg_plot.lines("Acceptance by depth", series, "depth of the draft token", "share accepted")
    return figure("Acceptance by depth", note, plot)


def against_acceptance(turns: Sequence[Record], note: str) -> str:
    """Speed-up of a turn against its mean accept_L."""
    groups = _by_source(turns, lambda t: float(np.mean(t["accept_L"])) if t["accept_L"] else None)
    plot = svg_plot.scatter(
        "Speed-up against accepted tokens",
        groups,
        "mean accept_L of the turn",
        "speed-up",
        (1.0, "as fast as the teacher"),
    )
    return figure("Speed-up against acceptance", f"a dot is a turn; {note}", plot)


def against_length(turns: Sequence[Record], note: str) -> str:
    """Speed-up of a turn against the length of its answer."""
    groups = _by_source(turns, lambda t: t["new_tokens"])
    plot = svg_plot.scatter(
        "Speed-up against output length",
        groups,
        "new tokens of the turn",
        "speed-up",
        (1.0, "as fast as the teacher"),
    )
    return figure("Speed-up against output length", f"a dot is a turn; {note}", plot)


def _by_source(turns: Sequence[Record], x: Any) -> list[tuple[str, list[tuple[float, float, str]]]]:
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for turn in turns:
        at = x(turn)
        if at is not None and turn["speedup"] is not None:
            why = f"{turn['turn_name']} ({turn['category']}): {turn['speedup']:.2f}x"
            groups.setdefault(turn["source"], []).append((at, turn["speedup"], why))
    return list(groups.items())


def categories(summary: Mapping[str, Any], note: str) -> str:
    """Mean speed-up of each category."""
    rows = [
        (
            name,
            found["speedup"],
            "good" if found["speedup"] >= 1 else "warn",
            f"{found['turns']} turns, accept_L {found['accept_L'] or 0:.2f}",
        )
        for name, found in summary["by_category"].items()
        if found["speedup"] is not None
    ]
    return figure("Speed-up by category", f"mean; {note}", svg_plot.bars("Speed-up by category", rows, "x"))


def stages(profile: Mapping[str, Any], note: str) -> str:
    """Time of a cycle by stage, beside whole cycles."""
    quantile = profile.get("stage_quantiles_ms", {})
    rows = [
        (
            name,
            mean,
            "stage",
            f"{_STAGE_NOTES[name]}; p50 {quantile[name]['p50']:.2f} ms, p99 {quantile[name]['p99']:.2f} ms",
        )
        for name, mean in profile["stage_ms"].items()
    ]
    rows.append(("all stages", profile["cycle_ms"], "calm", "sum of the stages, each a graph of its own"))
    rows.append(("one graph", profile["whole_cycle_ms"], "good", "a speculative cycle as it is really run"))
    rows.append(("teacher alone", profile["teacher_cycle_ms"], "calm", "one token of the teacher alone"))
    said = (
        f"mean of {profile['cycles']} cycles of {profile['turns']} turns, each stage run as a graph of its "
        f"own, apart from all other figures; {note}"
    )
    return figure("Where a cycle's time goes", said, svg_plot.bars("Time by stage", rows, "ms"))


def contexts(found: Sequence[Mapping[str, Any]], note: str) -> str:
    """Time of a cycle against the length of the context."""
    series = [
        Series("speculative cycle", [(c["tokens"], c["cycle_ms"]) for c in found]),
        Series("verify", [(c["tokens"], c["stage_ms"]["verify"]) for c in found]),
        Series("teacher alone, a token", [(c["tokens"], c["teacher_cycle_ms"]) for c in found]),
    ]
    plot = svg_plot.lines("Time against context", series, "tokens of context", "ms", log_x=True)
    said = f"one prompt of each length, at least 8 cycles after it; verify as a graph of its own; {note}"
    return figure("Time against context length", said, plot)
