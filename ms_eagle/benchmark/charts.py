"""The plots of a run, each with a caption that says what turns and settings it is made of."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_eagle.benchmark.figures import accepted, by_depth, values
from ms_eagle.benchmark.text import times
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.pages import plot
from ms_eagle.pages.parts import Bar, Figure
from ms_eagle.pages.plot import Marker, Plot, Series
from ms_eagle.reference.page.figures import STAGE_NOTES

_MOST_BINS = 28
AS_FAST = (1.0, "as fast as the teacher")


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


def run_charts(summary: Mapping[str, Any], turns: Sequence[Record]) -> list[Figure]:
    """Every plot that the turns of a run give."""
    common = settings(summary)
    note = f"{len(turns)} turns, {common}"
    charts = [speedups(summary, turns, note)]
    cycles = accepted(turns)
    if cycles:
        of = f"{len(cycles)} cycles of {note}"
        charts += [acceptance(cycles, of), depths(cycles, of), against_acceptance(turns, note)]
    charts += [against_length(turns, note), categories(summary, note)]
    profile = summary.get("profile")
    if profile:
        charts.append(stages(profile, common))
        if profile.get("context"):
            charts.append(contexts(profile["context"], common))
    return charts


def speedups(summary: Mapping[str, Any], turns: Sequence[Record], note: str) -> Figure:
    """Distribution of the speed-up by turn, with the slow tail marked."""
    return Figure(
        "Speed-up by turn",
        f"decoding, teacher alone over speculation; p1 and p10 are the slow tail; {note}",
        speedup_plot(values(turns, "speedup"), summary["speedup"]),
    )


def speedup_plot(speeds: Sequence[float], spread: Mapping[str, float]) -> Plot:
    """The plot of `speedups` alone."""
    markers = [Marker(spread["mean"], f"mean {spread['mean']:.2f}x", "mean")]
    for name in ("p1", "p10", "p50", "p90", "p99"):
        kind = "tail" if name in ("p1", "p10") else "quantile"
        markers.append(Marker(spread[name], f"{name} {spread[name]:.2f}x", kind))
    markers.sort(key=lambda marker: marker.x)
    return plot.histogram("Distribution of the speed-up", bins(speeds), "speed-up", markers, below=1.0)


def bins(numbers: Sequence[float]) -> list[tuple[float, float, int]]:
    """Round bins around numbers, with a border at 1."""
    low, high = min([*numbers, 1.0]), max([*numbers, 1.0])
    step = next(s for s in (0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 1e9) if (high - low) / s <= _MOST_BINS)
    first = math.floor(low / step + 1e-9)
    last = max(math.floor(high / step + 1e-9), first)
    counts = Counter(min(math.floor(number / step + 1e-9), last) for number in numbers)
    return [(i * step, (i + 1) * step, counts[i]) for i in range(first, last + 1)]


def acceptance(cycles: Sequence[int], note: str) -> Figure:
    """Histogram of accepted tokens per cycle."""
    counts = Counter(cycles)
    shares = [
        (f"{a}", counts[a] / len(cycles), f"{counts[a]} cycles accepted {a} draft tokens")
        for a in range(max(cycles) + 1)
    ]
    mean = sum(cycles) / len(cycles)
    return Figure(
        f"accept_L: {mean:.2f} draft tokens a cycle",
        f"without the bonus token (tau = {mean + 1:.2f}); share of {note}",
        plot.columns("Accepted draft tokens per cycle", shares, "accepted draft tokens", "share of cycles"),
    )


def depths(cycles: Sequence[int], note: str) -> Figure:
    """Acceptance by depth: of all cycles, and of those that got to the depth before."""
    shares = by_depth(cycles)
    of_before = [(each["depth"], each["given_parent"]) for each in shares]
    series = [
        Series("of all cycles", [(each["depth"], each["share"]) for each in shares] or [(1, 0.0)]),
        *([Series("of those that accepted the depth before", of_before)] if shares else []),
    ]
    return Figure("Acceptance by depth", note, depth_plot(series))


def depth_plot(series: Sequence[Series]) -> Plot:
    """Shares against depth."""
    return plot.lines("Acceptance by depth", series, "depth of the draft token", "share accepted")


def against_acceptance(turns: Sequence[Record], note: str) -> Figure:
    """Speed-up of a turn against its mean accept_L."""
    groups = _by_source(turns, [float(np.mean(t["accept_L"])) if t["accept_L"] else None for t in turns])
    dots = plot.scatter(
        "Speed-up against accepted tokens", groups, "mean accept_L of the turn", "speed-up", AS_FAST
    )
    return Figure("Speed-up against acceptance", f"a dot is a turn; {note}", dots)


def against_length(turns: Sequence[Record], note: str) -> Figure:
    """Speed-up of a turn against the length of its answer."""
    groups = _by_source(turns, [turn["new_tokens"] for turn in turns])
    title = "Speed-up against output length"
    dots = plot.scatter(title, groups, "new tokens of the turn", "speed-up", AS_FAST)
    return Figure(title, f"a dot is a turn; {note}", dots)


def _by_source(
    turns: Sequence[Record], xs: Sequence[float | None]
) -> list[tuple[str, list[tuple[float, float, str]]]]:
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for turn, x in zip(turns, xs, strict=True):
        if x is not None and turn["speedup"] is not None:
            note = f"{turn['turn_name']} ({turn['category']}): {turn['speedup']:.2f}x"
            groups.setdefault(turn["source"], []).append((x, turn["speedup"], note))
    return list(groups.items())


def categories(summary: Mapping[str, Any], note: str) -> Figure:
    """Mean speed-up of each category."""
    bars = [
        speedup_bar(name, group["speedup"], f"{group['turns']} turns, accept_L {group['accept_L'] or 0:.2f}")
        for name, group in summary["by_category"].items()
        if group["speedup"] is not None
    ]
    return Figure("Speed-up by category", f"mean; {note}", bars=bars)


def speedup_bar(name: str, speedup: float, note: str) -> Bar:
    """A speed-up, coloured by whether it is one."""
    return Bar(name, speedup, times(speedup), "good" if speedup >= 1 else "warn", note)


def stages(profile: Mapping[str, Any], note: str) -> Figure:
    """Time of a cycle by stage, beside whole cycles."""
    quantile = profile.get("stage_quantiles_ms", {})
    stages = [
        (
            name,
            mean,
            "time",
            f"{STAGE_NOTES[name]}; p50 {quantile[name]['p50']:.2f} ms, p99 {quantile[name]['p99']:.2f} ms",
        )
        for name, mean in profile["stage_ms"].items()
    ]
    whole = [
        ("all stages", profile["cycle_ms"], "calm", "sum of the stages, each a graph of its own"),
        ("one graph", profile["whole_cycle_ms"], "good", "a speculative cycle as it is really run"),
        ("teacher alone", profile["teacher_cycle_ms"], "calm", "one token of the teacher alone"),
    ]
    return Figure(
        "Where a cycle's time goes",
        f"mean of {profile['cycles']} cycles of {profile['turns']} turns, each stage run as a graph of its "
        f"own, apart from all other figures; {note}",
        bars=[Bar(name, ms, f"{ms:.3g} ms", kind, why) for name, ms, kind, why in (*stages, *whole)],
    )


def contexts(points: Sequence[Mapping[str, Any]], note: str) -> Figure:
    """Time of a cycle against the length of the context."""
    series = [
        Series("speculative cycle", [(c["tokens"], c["cycle_ms"]) for c in points]),
        Series("verify", [(c["tokens"], c["stage_ms"]["verify"]) for c in points]),
        Series("teacher alone, a token", [(c["tokens"], c["teacher_cycle_ms"]) for c in points]),
    ]
    return Figure(
        "Time against context length",
        f"one prompt of each length, at least 8 cycles after it; verify as a graph of its own; {note}",
        plot.lines("Time against context", series, "tokens of context", "ms", log_x=True),
    )
