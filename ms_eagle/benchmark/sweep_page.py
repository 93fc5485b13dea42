"""A sweep as one HTML page, and as values for ``summary.json``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ms_eagle.benchmark import charts, identity, paper
from ms_eagle.benchmark.run import REPORT, SUMMARY, Job
from ms_eagle.benchmark.sweep import Measured, Sweep
from ms_eagle.benchmark.text import number, share
from ms_eagle.drafters import registry
from ms_eagle.pages import plot
from ms_eagle.pages.columns import aligned
from ms_eagle.pages.parts import Bar, Figure, Section
from ms_eagle.pages.plot import Series
from ms_eagle.pages.template import render
from ms_eagle.system import files, json_file

_QUANTILES = ("p1", "p10", "p50", "p90", "p99")


def record(sweep: Sweep, measured: Sequence[Measured], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """``summary.json`` of a sweep: title, points with their settings and figures, manifest."""
    return {
        "title": sweep.title,
        "question": sweep.question,
        "points": [
            {"name": m.point.name, "set": m.point.set, "directory": m.directory, **m.figures}
            for m in measured
        ],
        "manifest": dict(manifest),
    }


def write(out: Path, sweep: Sweep, measured: Sequence[Measured], job: Job) -> None:
    """Write ``summary.json`` and ``report.html`` of a sweep; ``job`` says what its points share."""
    manifest = identity.identity(job.config, job.prompts, job.limit)
    generation = job.config.generation
    turns = max((m.figures["turns"] for m in measured), default=0)
    greedy = "greedy" if generation.temperature == 0 else f"temperature {generation.temperature:g}"
    note = (
        f"{turns} turns a point, at most {generation.max_new_tokens} new tokens, {greedy} unless the point "
        "says otherwise"
    )
    json_file.write_object(out / SUMMARY, record(sweep, measured, manifest))
    files.write_text(out / REPORT, page(sweep, measured, manifest, note))


def lines(measured: Sequence[Measured]) -> list[str]:
    """A table for a terminal."""
    rows: list[tuple[str, ...]] = [
        ("point", "turns", "speed-up", "   p1", "  p50", "  p99", "accept_L", "identical")
    ]
    for m in measured:
        if "error" in m.figures:
            rows.append((m.point.name, f"failed: {m.figures['error']}"))
            continue
        name, turns, mean, p1, _, p50, _, p99, accept, _, _, match = _row(m)
        rows.append((name, turns, mean, p1, p50, p99, accept, match))
    return aligned(rows)


def page(sweep: Sweep, measured: Sequence[Measured], manifest: Mapping[str, Any], note: str) -> str:
    """The whole page; ``note`` says what turns and settings the points share."""
    heads = (
        "point",
        "turns",
        "speed-up",
        *_QUANTILES,
        "accept_L",
        "t/s alone",
        "t/s speculating",
        "identical",
    )
    about = (
        f"{note}. Quantiles are over turns; each point has its own teacher-only runs, interleaved with the "
        "speculative ones."
    )
    if {key for m in measured for key in m.point.set} & {"tree.budget", "drafter.window"}:
        about += f" {paper.SWEEP_NOTE}"
    failed = [(m.point.name, m.figures["error"]) for m in measured if "error" in m.figures]
    return render(
        "report.html",
        kicker="ms_eagle benchmark, ablation",
        title=sweep.title,
        lead=sweep.question,
        notices=registry.notices(manifest["config"]["drafter"]["kind"]),
        manifest=manifest,
        sections=[
            Section("Plots", figures=plots(sweep, measured, note)),
            Section("Every point", about, heads, [_row(m) for m in measured]),
            Section("Points that failed", heads=("point", "why"), rows=failed, kind="error"),
        ],
    )


def plots(sweep: Sweep, measured: Sequence[Measured], note: str) -> list[Figure]:
    """Speed-up and acceptance along each axis of numbers, or one bar a point where there is none."""
    good = [m for m in measured if m.figures["speedup"]["mean"] is not None]
    if not good:
        return []
    axes = [key for key, values in sweep.grid.items() if len(values) > 1 and all(map(_is_number, values))]
    if sweep.x is None or sweep.x not in axes:
        return _bars(good, note)
    figures = []
    for axis in sorted(axes, key=lambda key: key != sweep.x):
        own = [m for m in good if axis in m.point.set]
        figures.append(_against(axis, own, "speedup", f"mean over turns, whiskers from p10 to p90; {note}"))
        figures.append(_against(axis, own, "accept_L", note))
    return figures


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bars(good: Sequence[Measured], note: str) -> list[Figure]:
    speed, accept, rates = [], [], []
    for m in good:
        name, figures = m.point.name, m.figures
        speedup, length = figures["speedup"], figures["accept_L"]["mean"] or 0.0
        speed.append(charts.speedup_bar(name, speedup["mean"], f"slow tail p1 {speedup['p1']:.2f}x"))
        accept.append(Bar(name, length, f"{length:.2f}", "time", "accept_L"))
        alone, speculating = figures["baseline_tps"], figures["speculative_tps"]
        rates.append(Bar(name, alone, f"{alone:.1f}", "calm", "teacher alone"))
        rates.append(Bar("with speculation", speculating, f"{speculating:.1f}", "good", name))
    return [
        Figure("Mean speed-up", note, bars=speed),
        Figure("accept_L", note, bars=accept),
        Figure("Tokens a second", f"teacher alone, then with speculation; {note}", bars=rates),
    ]


def _against(axis: str, own: Sequence[Measured], figure: str, note: str) -> Figure:
    """A figure along one key, a line for each setting of the others."""
    groups: dict[str, list[Measured]] = {}
    for m in sorted(own, key=lambda m: m.point.set[axis]):
        others = [f"{key.partition('.')[2]} {v}" for key, v in m.point.set.items() if key != axis]
        groups.setdefault(", ".join(others), []).append(m)
    series = []
    for name, group in groups.items():
        points = [(m.point.set[axis], m.figures[figure]["mean"] or 0.0) for m in group]
        low, high = ([m.figures[figure].get(q) for m in group] for q in ("p10", "p90"))
        series.append(Series(name, points, low, high) if figure == "speedup" else Series(name, points))
    xs = [m.point.set[axis] for m in own]
    name = "Speed-up" if figure == "speedup" else "accept_L"
    picture = plot.lines(
        name,
        series,
        axis,
        "speed-up" if figure == "speedup" else figure,
        log_x=min(xs) > 0 and max(xs) >= 8 * min(xs),
        reference=charts.AS_FAST if figure == "speedup" else None,
    )
    return Figure(f"{name} against {axis}", note, picture)


def _row(m: Measured) -> tuple[str, ...]:
    figures = m.figures
    return (
        m.point.name,
        f"{figures['turns']}",
        *(number(figures["speedup"][key]) for key in ("mean", *_QUANTILES)),
        number(figures["accept_L"]["mean"]),
        number(figures["baseline_tps"], 1),
        number(figures["speculative_tps"], 1),
        share(figures["tokens_match"]),
    )
