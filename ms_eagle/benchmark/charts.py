"""The plots of a run, each with a caption that says what turns and settings it is made of."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_eagle.benchmark.figures import accepted, by_depth, values
from ms_eagle.benchmark.text import times
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.pages.axes import Marker, short
from ms_eagle.pages.parts import Bar, Figure
from ms_eagle.pages.plot import Plot, Series, columns, lines
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
    note, cycles, profile = f"{len(turns)} turns, {common}", accepted(turns), summary.get("profile")
    speedups = speedup_plot(values(turns, "speedup"), summary["speedup"])
    about = f"decoding, teacher alone over speculation; p1 and p10 are the slow tail; {note}"
    charts = [Figure("Speed-up by turn", about, speedups)]
    if cycles:
        of, means = f"{len(cycles)} cycles of {note}", [mean_accepted(turn) for turn in turns]
        charts += [acceptance(cycles, of), depths(cycles, of)]
        charts.append(against("acceptance", "mean accept_L of the turn", means, turns, note))
    lengths = [turn["new_tokens"] for turn in turns]
    charts.append(against("output length", "new tokens of the turn", lengths, turns, note))
    charts.append(categories(summary, note))
    charts += [stages(profile, common)] if profile else []
    charts += [contexts(profile["context"], common)] if profile and profile.get("context") else []
    return charts


def speedup_plot(speeds: Sequence[float], spread: Mapping[str, float]) -> Plot:
    """Distribution of the speed-up by turn, with the slow tail marked."""
    markers = [Marker(spread["mean"], f"mean {spread['mean']:.2f}x", "mean")]
    for name in ("p1", "p10", "p50", "p90", "p99"):
        kind = "tail" if name in ("p1", "p10") else "quantile"
        markers.append(Marker(spread[name], f"{name} {spread[name]:.2f}x", kind))
    markers.sort(key=lambda marker: marker.x)
    counts = [
        (
            left,
            right,
            count,
            "warn" if right <= 1 + 1e-9 else "good",
            f"{short(left)} to {short(right)}: {count} turns",
        )
        for left, right, count in bins(speeds)
    ]
    name = "Distribution of the speed-up"
    return columns(name, counts, "speed-up", "turns", markers=markers, whole=True)


def bins(numbers: Sequence[float]) -> list[tuple[float, float, int]]:
    """Round bins around numbers, with a border at 1."""
    low, high = min([*numbers, 1.0]), max([*numbers, 1.0])
    step = next(s for s in (0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 1e9) if (high - low) / s <= _MOST_BINS)
    first = math.floor(low / step + 1e-9)
    last = max(math.floor(high / step + 1e-9), first)
    counts = Counter(min(math.floor(number / step + 1e-9), last) for number in numbers)
    return [(round(i * step, 9), round((i + 1) * step, 9), counts[i]) for i in range(first, last + 1)]


def acceptance(cycles: Sequence[int], note: str) -> Figure:
    """Histogram of accepted tokens per cycle."""
    counts, mean = Counter(cycles), sum(cycles) / len(cycles)
    shares = [
        (a - 0.5, a + 0.5, counts[a] / len(cycles), "good", f"{counts[a]} cycles accepted {a} draft tokens")
        for a in range(max(cycles) + 1)
    ]
    return Figure(
        f"accept_L: {mean:.2f} draft tokens a cycle",
        f"without the bonus token (tau = {mean + 1:.2f}); share of {note}",
        columns("Accepted draft tokens per cycle", shares, "accepted draft tokens", "share of cycles"),
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
    return lines("Acceptance by depth", series, "depth of the draft token", "share accepted")


def mean_accepted(turn: Record) -> float | None:
    """Mean accept_L of a turn's cycles; None without a cycle."""
    return float(np.mean(turn["accept_L"])) if turn["accept_L"] else None


def against(what: str, axis: str, xs: Sequence[float | None], turns: Sequence[Record], note: str) -> Figure:
    """Speed-up of each turn against a number of it, coloured by its file."""
    dots = [(x, turn) for x, turn in zip(xs, turns, strict=True) if None not in (x, turn["speedup"])]
    series = []
    for source in dict.fromkeys(turn["source"] for _, turn in dots):
        own = [(x, turn) for x, turn in dots if turn["source"] == source]
        notes = [f"{turn['turn_name']} ({turn['category']}): {times(turn['speedup'])}" for _, turn in own]
        series.append(Series(source, [(x, turn["speedup"]) for x, turn in own], notes=notes, line=False))
    title = f"Speed-up against {what}"
    plot = lines(title, series, axis, "speed-up", from_zero=True, reference=AS_FAST)
    return Figure(title, f"a dot is a turn; {note}", plot)


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
    spread = profile.get("stage_quantiles_ms", {})
    bars = [
        (
            name,
            ms,
            "time",
            f"{STAGE_NOTES[name]}; p50 {spread[name]['p50']:.2f} ms, p99 {spread[name]['p99']:.2f} ms",
        )
        for name, ms in profile["stage_ms"].items()
    ]
    bars += [
        ("all stages", profile["cycle_ms"], "calm", "sum of the stages, each a graph of its own"),
        ("one graph", profile["whole_cycle_ms"], "good", "a speculative cycle as it is really run"),
        ("teacher alone", profile["teacher_cycle_ms"], "calm", "one token of the teacher alone"),
    ]
    return Figure(
        "Where a cycle's time goes",
        f"mean of {profile['cycles']} cycles of {profile['turns']} turns, each stage run as a graph of its "
        f"own, apart from all other figures; {note}",
        bars=[Bar(name, ms, f"{ms:.3g} ms", kind, why) for name, ms, kind, why in bars],
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
        lines("Time against context", series, "tokens of context", "ms", log_x=True),
    )
