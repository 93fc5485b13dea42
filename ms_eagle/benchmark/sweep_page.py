"""A sweep as one HTML page, and as values for ``summary.json``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ms_eagle.benchmark import charts, identity, paper
from ms_eagle.benchmark.page import document, table
from ms_eagle.benchmark.run import REPORT, SUMMARY, Job
from ms_eagle.benchmark.sweep import Measured, Sweep
from ms_eagle.pages import plot as svg_plot
from ms_eagle.pages.plot import Series, text
from ms_eagle.system import files, json_file


def record(sweep: Sweep, measured: Sequence[Measured], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """``summary.json`` of a sweep: title, points with their settings and figures, manifest."""
    return {
        "title": sweep.title,
        "question": sweep.question,
        "points": [
            {"name": m.point.name, "set": m.point.set, "directory": m.directory, **m.found} for m in measured
        ],
        "manifest": dict(manifest),
    }


def write(out: Path, sweep: Sweep, measured: Sequence[Measured], job: Job) -> None:
    """Write ``summary.json`` and ``report.html`` of a sweep; ``job`` says what its points share."""
    manifest = identity.identity(job.config, job.prompts, job.limit)
    generation = job.config.generation
    turns = max((m.found["turns"] for m in measured), default=0)
    greedy = "greedy" if generation.temperature == 0 else f"temperature {generation.temperature:g}"
    note = (
        f"{turns} turns a point, at most {generation.max_new_tokens} new tokens, {greedy} unless the point "
        "says otherwise"
    )
    json_file.write_object(out / SUMMARY, record(sweep, measured, manifest))
    files.write_text(out / REPORT, page(sweep, measured, manifest, note))


def lines(measured: Sequence[Measured]) -> list[str]:
    """A table for a terminal."""
    width = max(len(m.point.name) for m in measured)
    found = [f"{'point':{width}}  turns  speed-up     p1    p50    p99  accept_L  identical"]
    for m in measured:
        if "error" in m.found:
            found.append(f"{m.point.name:{width}}  failed: {m.found['error']}")
            continue
        _, turns, mean, p1, _, p50, _, p99, accept, _, _, match = _row(m)
        figures = f"{turns:>5}  {mean:>8}  {p1:>5}  {p50:>5}  {p99:>5}  {accept:>8}  {match:>9}"
        found.append(f"{m.point.name:{width}}  {figures}")
    return found


def page(sweep: Sweep, measured: Sequence[Measured], manifest: Mapping[str, Any], note: str) -> str:
    """The whole page; ``note`` says what turns and settings the points share."""
    synthetic = manifest["config"]["drafter"]["kind"] == "synthetic"
    warning = (
        '<p class="notice">Synthetic drafter: figures of the machinery, not of any head.</p>'
        if synthetic
        else ""
    )
    body = (
        f'<header><p class="kicker">ms_eagle benchmark, ablation</p><h1>{text(sweep.title)}</h1>'
        f'<p class="lead">{text(sweep.question)}</p>{warning}</header><main>'
        f'<section class="charts">{"".join(plots(sweep, measured, note))}</section>'
        f'<section><h2>Every point</h2><p class="meta">{text(note)}. Quantiles are over turns; each point '
        "has its own teacher-only runs, interleaved with the speculative ones.</p>"
        f"{points_table(measured)}</section>{errors(measured)}"
        f"{_paper(measured)}</main>"
    )
    return document(sweep.title, body, manifest)


def _paper(measured: Sequence[Measured]) -> str:
    """What the paper found, where it asked the same."""
    keys = {key for m in measured for key in m.point.set}
    if not keys & {"tree.budget", "drafter.window"}:
        return ""
    return f'<section><h2>In the paper</h2><p class="meta">{text(paper.SWEEP_NOTE)}</p></section>'


def plots(sweep: Sweep, measured: Sequence[Measured], note: str) -> list[str]:
    """Speed-up and acceptance along each axis of numbers, or one bar a point where there is none."""
    good = [m for m in measured if m.found["speedup"]["mean"] is not None]
    if not good:
        return []
    axes = [key for key, values in sweep.grid.items() if len(values) > 1 and all(map(_is_number, values))]
    if sweep.x is None or sweep.x not in axes:
        return _bars(good, note)
    found = []
    for axis in sorted(axes, key=lambda key: key != sweep.x):
        own = [m for m in good if axis in m.point.set]
        found.append(_against(axis, own, "speedup", f"mean over turns, whiskers from p10 to p90; {note}"))
        found.append(_against(axis, own, "accept_L", note))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bars(good: Sequence[Measured], note: str) -> list[str]:
    speed, accept, rates = [], [], []
    for m in good:
        kind = "good" if m.found["speedup"]["mean"] >= 1 else "warn"
        tail = f"slow tail p1 {m.found['speedup']['p1']:.2f}x"
        speed.append((m.point.name, m.found["speedup"]["mean"], kind, tail))
        accept.append((m.point.name, m.found["accept_L"]["mean"] or 0.0, "stage", "accept_L"))
        rates.append((m.point.name, m.found["baseline_tps"], "calm", "teacher alone"))
        rates.append(("with speculation", m.found["speculative_tps"], "good", m.point.name))
    return [
        charts.figure("Mean speed-up", note, svg_plot.bars("Mean speed-up", speed, "x")),
        charts.figure("accept_L", note, svg_plot.bars("accept_L", accept, "")),
        charts.figure("Tokens a second", f"teacher alone, then with speculation; {note}", _rates(rates)),
    ]


def _rates(rows: Sequence[tuple[str, float, str, str]]) -> str:
    return svg_plot.bars("Tokens a second", rows, "")


def _against(axis: str, own: Sequence[Measured], figure: str, note: str) -> str:
    """A figure along one key, a line for each setting of the others."""
    groups: dict[str, list[Measured]] = {}
    for m in sorted(own, key=lambda m: m.point.set[axis]):
        others = [f"{key.partition('.')[2]} {v}" for key, v in m.point.set.items() if key != axis]
        groups.setdefault(", ".join(others), []).append(m)
    series = []
    for name, each in groups.items():
        points = [(m.point.set[axis], m.found[figure]["mean"] or 0.0) for m in each]
        spread = [[m.found[figure].get(q) for m in each] for q in ("p10", "p90")]
        series.append(Series(name, points, *spread) if figure == "speedup" else Series(name, points))
    xs = [m.point.set[axis] for m in own]
    called = "Speed-up" if figure == "speedup" else "accept_L"
    plot = svg_plot.lines(
        called,
        series,
        axis,
        "speed-up" if figure == "speedup" else figure,
        log_x=min(xs) > 0 and max(xs) >= 8 * min(xs),
        reference=(1.0, "as fast as the teacher") if figure == "speedup" else None,
    )
    return charts.figure(f"{called} against {axis}", note, plot)


def points_table(measured: Sequence[Measured]) -> str:
    """One row a point."""
    heads = ("point", "turns", "speed-up", "p1", "p10", "p50", "p90", "p99", "accept_L")
    heads = (*heads, "t/s alone", "t/s speculating", "identical")
    return table(heads, [_row(m) for m in measured])


def errors(measured: Sequence[Measured]) -> str:
    """The points that could not be measured."""
    rows = [(m.point.name, m.found["error"]) for m in measured if "error" in m.found]
    if not rows:
        return ""
    return f'<section class="error"><h2>Points that failed</h2>{table(("point", "why"), rows)}</section>'


def _row(m: Measured) -> tuple[str, ...]:
    speed, found = m.found["speedup"], m.found
    match = "-" if found["tokens_match"] is None else f"{100 * found['tokens_match']:.3g} %"
    return (
        m.point.name,
        f"{found['turns']}",
        *(_shown(speed[key]) for key in ("mean", "p1", "p10", "p50", "p90", "p99")),
        _shown(found["accept_L"]["mean"]),
        _shown(found["baseline_tps"], 1),
        _shown(found["speculative_tps"], 1),
        match,
    )


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
