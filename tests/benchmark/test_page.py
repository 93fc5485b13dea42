"""The report, the sweep's page and the comparison, from hand-written runs."""

import json
import re

import numpy as np
import pytest
from support.elements import Elements
from support.turns import TURNS, turn

from ms_eagle.benchmark import charts, compare, page, sweep_page
from ms_eagle.benchmark.figures import summary
from ms_eagle.benchmark.sweep import Measured, Point, Sweep, overrides, read_sweep, slug
from ms_eagle.config.sections import load_config
from ms_eagle.errors import UserError
from ms_eagle.paths import CONFIGS
from ms_eagle.system import json_file

CONFIG = {
    "model": {"source": "m<1>", "dtype": "float32"},
    "drafter": {"kind": "eagle3"},
    "execution": {"mode": "performance", "batch_size": 1},
    "generation": {"temperature": 0.0, "max_new_tokens": 64},
}
MANIFEST = {
    "config": CONFIG,
    "machine": {"cpu": "a <cpu>", "cores": 2, "memory_gb": 8.0},
    "versions": {"mindspore": "2.9.0"},
    "drafter": "eagle3",
    "kernels": "native",
    "tree": {"budget": 16, "depth": 5, "branch": 8},
}
PROFILE = {
    "stage_ms": {"draft": 3.0, "verify": 9.0},
    "stage_quantiles_ms": {s: {"p50": 1.0, "p99": 2.0} for s in ("draft", "verify")},
    "turns": 1,
    "cycles": 7,
    "cycle_ms": 12.0,
    "whole_cycle_ms": 11.0,
    "teacher_cycle_ms": 5.0,
    "context": [
        {"tokens": n, "cycle_ms": 9.0, "teacher_cycle_ms": 4.0, "stage_ms": {"verify": 5.0}}
        for n in (64, 128)
    ],
}


def whole(records=TURNS, manifest=MANIFEST, **more):
    return {**summary(records, None, manifest), "profile": None, **more}


def test_the_report_stands_alone_and_says_everything():
    text = page.page(whole(profile=PROFILE), TURNS)
    shown = Elements(text)
    assert shown.loads == []
    assert "@import" not in text and "url(" not in text  # noqa: PT018
    for words in (
        "EAGLE-3 against m<1> alone",
        "slow tail, p1",
        "best turns, p99",
        "Answers that differ",
        "Turns that failed",
        "too long",
        "Where a cycle's time goes",
        "not printed",
        "a <cpu>",
    ):
        assert shown.says(words), words
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert not shown.says("Synthetic drafter")


def test_every_plot_names_its_turns_and_settings():
    figures = charts.run_charts(whole(profile=PROFILE), TURNS[:3])
    assert len(figures) == 8
    for figure in figures:
        assert "greedy, M=16 D=5 k=8, native kernels, batch 1" in figure.note
        assert re.search(r"\d+ (turns|cycles)|one prompt of each length", figure.note)


def test_the_page_shows_the_numbers_of_the_summary():
    result = whole(profile=PROFILE)
    shown = Elements(page.page(result, TURNS))
    speed, accept = result["speedup"], result["accept_L"]
    for number in (*(f"{speed[q]:.2f}x" for q in speed), f"{accept['mean']:.2f}", f"tau {result['tau']:.2f}"):
        assert shown.says(number), number
    assert shown.says(f"{result['speculative_tps']:.1f} teacher alone {result['baseline_tps']:.1f}")
    for name, group in result["by_category"].items():
        assert shown.says(f"{name} {group['turns']} {group['speedup']:.2f}x {group['accept_L']:.2f}"), name
    for stage, ms in PROFILE["stage_ms"].items():
        assert shown.says(f"{stage} {ms:.3g} ms")
    (difference,) = result["differences"]
    assert shown.says(f"{difference['turn_name']} 3 7 / 8 0.5")


def test_bars_are_as_long_as_their_values():
    text = page.page(whole(profile=PROFILE), TURNS)
    widths = dict(
        re.findall(r'<th scope="row">([^<]*)</th> <td class="bar"><span [^>]*width:([\d.]+)%', text)
    )
    assert float(widths["draft"]) == pytest.approx(100 * 3 / 12, abs=0.1)
    assert float(widths["all stages"]) == 100


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"


def test_no_name_of_a_run_becomes_markup():
    record = {**turn(0, 1.5, [1], category=EVIL, identical=False), "turn_name": EVIL, "source": EVIL}
    other = {**turn(1, 1.5, [1], category="b"), "source": "s"}
    failed = {"turn_name": EVIL, "error": {"kind": EVIL, "message": EVIL}}
    config = {**CONFIG, "model": {"source": EVIL, "dtype": EVIL}}
    manifest = {
        **MANIFEST,
        "config": config,
        "kernels": EVIL,
        "machine": {**MANIFEST["machine"], "cpu": EVIL},
    }
    run = [record, other, failed]
    result = whole(run, manifest, profile=PROFILE)
    a, b = (
        compare.Finished(EVIL + name, result, {EVIL: {"token_ids": [1], **rates(record)}}) for name in "ab"
    )
    sweep = Sweep(title=EVIL, question=EVIL, points=[Point(name=EVIL)])
    measured = [point(EVIL, {}, [1.0]), point(EVIL, {}, [], error=EVIL)]
    pages = [page.page(result, run), compare.page(a, b), sweep_page.page(sweep, measured, manifest, EVIL)]
    for text in pages:
        assert not [e for e in Elements(text).found if e[0] in ("script", "img")]


def test_a_synthetic_run_says_so():
    manifest = {**MANIFEST, "drafter": "synthetic"}
    shown = Elements(page.page(whole(manifest=manifest), TURNS))
    assert shown.says("Synthetic drafter: it proposes the teacher's own continuation")


@pytest.mark.parametrize("records", [[], TURNS[3:], TURNS[:1], [turn(0, 1.0, [])]])
def test_small_runs_have_a_page(records):
    Elements(page.page(whole(records), records))


def test_unfinished_runs_say_so():
    shown = Elements(page.page(whole(planned_turns=9, incomplete_ranks={"1": 5}), TURNS))
    assert shown.says("Unfinished: 5 of 9 turns are missing")
    assert shown.says("Worker 1 ended before its time and left 5 turns undone")


def test_bins_hold_every_number_and_end_at_one():
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.3, 3, 50):
        numbers = (1 + scale * rng.standard_normal(200)).tolist()
        bins = charts.bins(numbers)
        assert sum(count for *_, count in bins) == 200
        assert len(bins) <= 30
        if scale < 3:
            assert any(abs(left - 1) < 1e-9 or abs(right - 1) < 1e-9 for left, right, _ in bins)
    assert charts.bins([1.0]) == [(1.0, pytest.approx(1.05), 1)]


# Comparing.


def finished(directory, records, **changes):
    directory.mkdir()
    manifest = {**MANIFEST, "config": {**CONFIG, "tree": {"budget": changes.get("budget", 16)}}}
    json_file.write_object(directory / "summary.json", whole(records, manifest))
    lines = [{"token_ids": [1], **r} for r in records]
    (directory / "turns.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    return compare.read(directory)


def rates(record):
    for side in ("teacher", "speculative"):
        record[side]["tokens_per_second"] = record["new_tokens"] / record[side]["decode_s"]
    return record


def test_two_runs_side_by_side(tmp_path):
    a = finished(tmp_path / "a", [rates(turn(i, 1.0 + i / 10, [1])) for i in range(8)])
    b = finished(tmp_path / "b", [rates(turn(i, 2.0 + i / 5, [2])) for i in range(2, 10)], budget=32)
    rows = {row.name: row for row in compare.compare(a, b)}
    assert rows["speed-up"].change == pytest.approx((2.0, 2.0, 2.0))  # exactly twice on every shared turn
    mean, low, high = rows["speed-up"].a
    assert mean == pytest.approx(1.35)
    assert low < mean < high
    assert rows["accept_L of a turn"].change == (1.0, 1.0, 1.0)
    text = "\n".join(compare.lines(a, b))
    assert "tree.budget: 16 in A, 32 in B" in text
    assert "6 turns are in both; 2 in A alone, 2 in B" in text
    assert re.search(r"speed-up p1 +1\.01 +2\.41", text)
    shown = Elements(compare.page(a, b))
    assert shown.says("Settings that differ")
    assert shown.loads == []


def test_intervals_narrow_with_the_turns():
    rng = np.random.default_rng(0)
    few, many = (compare.interval(rng.normal(2, 0.5, n).tolist()) for n in (10, 1000))
    assert few[2] - few[1] > 3 * (many[2] - many[1])
    assert many[1] < 2 < many[2]
    assert compare.interval([]) is None


def test_only_finished_runs_are_compared(tmp_path):
    with pytest.raises(UserError, match=r"no summary\.json there"):
        compare.read(tmp_path)
    json_file.write_object(tmp_path / "summary.json", {"title": "a sweep", "points": []})
    with pytest.raises(UserError, match="summary of a sweep"):
        compare.read(tmp_path)


# Sweeps.


def write(tmp_path, text):
    path = tmp_path / "s.yaml"
    path.write_text("title: T\nquestion: Q\n" + text)
    return path


def test_a_grid_is_all_combinations_and_points_follow(tmp_path):
    path = write(
        tmp_path,
        "x: tree.budget\ngrid: {tree.budget: [4, 8], tree.depth: [3, 5]}\n"
        "points:\n  - name: chain\n    set: {tree.branch: 1}\n",
    )
    points = read_sweep(path).all_points()
    assert [slug(p.name) for p in points][:2] == ["budget-4-depth-3", "budget-4-depth-5"]
    assert [p.set for p in points[2:]] == [
        {"tree.budget": 8, "tree.depth": 3},
        {"tree.budget": 8, "tree.depth": 5},
        {"tree.branch": 1},
    ]
    assert overrides({"a.b": None, "c.d": "x: y", "e.f": [1]}) == ["a.b=null", 'c.d="x: y"', "e.f=[1]"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither grid nor points"),
        ("grid: {tree.bugdet: [1]}", r"unknown key tree.bugdet \(nearest valid key: tree.budget\)"),
        ("grid: {tree.budget: [1]}\nx: tree.depth", "x is tree.depth, which is not in grid"),
        ("points: [{name: a}, {name: A}]", "two points are called a"),
        ("sweep: 1", "sweep: Extra inputs are not permitted"),
        ("grid: [1", r"s\.yaml:3: not valid YAML"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_sweep(write(tmp_path, text))


def test_the_sweeps_of_the_project_fit_the_default_model():
    paths = sorted((CONFIGS / "bench").iterdir())
    assert len(paths) >= 8
    for path in paths:
        for point in read_sweep(path).all_points():
            load_config(CONFIGS / "smollm2_135m.yaml", overrides(point.set))


def point(name, settings, speedups, **more):
    figures = summary([turn(i, s, [1]) for i, s in enumerate(speedups)], None, {})
    return Measured(Point(name=name, set=settings), f"points/{name}", {**figures, **more})


def test_a_page_of_a_sweep(tmp_path):
    sweep = Sweep(
        title="T <x>", question="Q?", grid={"tree.budget": [4, 8], "tree.depth": [3]}, x="tree.budget"
    )
    measured = [
        point("M4", {"tree.budget": 4, "tree.depth": 3}, [1.0, 1.5]),
        point("M8", {"tree.budget": 8, "tree.depth": 3}, [1.2, 1.7]),
        point("bad", {"tree.budget": 16, "tree.depth": 3}, [], error="no such kernels"),
    ]
    shown = Elements(sweep_page.page(sweep, measured, MANIFEST, "2 turns a point"))
    for words in ("T <x>", "Q?", "Speed-up against tree.budget", "Points that failed", "no such kernels"):
        assert shown.says(words), words
    lines = sweep_page.lines(measured)
    assert lines[2].startswith("M8 ")
    assert "failed: no such kernels" in lines[3]
    named = Sweep(title="T", question="Q", points=[Point(name="a"), Point(name="b")])
    Elements(sweep_page.page(named, [point("a", {}, [1.0]), point("b", {}, [0.5])], MANIFEST, "1 turn"))
