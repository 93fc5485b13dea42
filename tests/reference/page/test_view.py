"""The page of a trace: its structure, its numbers, its escaping, and how Chromium takes it."""

import html
import json
import math
import shutil
import subprocess
import sys

import pytest
from support.elements import Elements

from ms_eagle.paths import ROOT
from ms_eagle.reference.page.figures import figures
from ms_eagle.reference.page.tree import draw, percent, visible
from ms_eagle.reference.page.view import page
from ms_eagle.reference.trace import SCHEMA, TraceWriter, read_trace

TOOL = ROOT / "tools" / "trace_view.py"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00"


def cycle(accepted, pieces=("A", "B"), *, n=3, prompt="p", turn=1, row=0):
    """A cycle over a tree of two children of the root, the first with two children, and one padding row."""
    tree = {
        "tokens": [1, 2, 3, 4, 5, 0],
        "parents": [0, 0, 0, 1, 1, 0],
        "depths": [0, 1, 1, 2, 2, 0],
        "scores": [0.0, math.log(0.5), math.log(0.25), math.log(0.4), None, 0.0],
        "valid": [True] * 5 + [False],
        "pieces": ["R", "A", "x", "B", "y", "PADDING"],
    }
    path = [0, 1, 3][: accepted + 1]
    own = [*pieces, "Z", "Z"]
    choice_pieces = ["unspoken"] * 6
    for place, at in enumerate(path):
        choice_pieces[at] = own[place]
    return {
        "prompt": prompt,
        "turn": turn,
        "row": row,
        "n": n,
        "root": 1,
        "tree": tree,
        "choices": [2, 4, 7, 8, 9, 0],
        "choice_pieces": choice_pieces,
        "path": path,
        "accept_L": accepted,
        "emitted": [2, 4, 8][: accepted + 1],
        "pieces": own[: accepted + 1],
        "seconds": {"draft": 0.01, "verify": 0.05, "accept": 0.001, "checks": 0.2},
    }


def trace_of(path, *records, drafter="eagle3"):
    writer = TraceWriter(path)
    tree = None if drafter == "none" else {"budget": 5, "depth": 2, "branch": 2}
    config = {"model": {"source": "models/tiny", "dtype": "float32"}}
    manifest = {"schema": SCHEMA, "drafter": drafter, "tree": tree, "config": config, "versions": {}}
    manifest |= {"git": {"commit": "0" * 40, "modified": True}, "created": "2026-01-01", "device": "CPU"}
    writer.write("manifest", manifest)
    for kind, record in records:
        writer.write(kind, record)
    writer.close()
    return read_trace(path)


def prefill(text="Once ", prompt="p", turn=1):
    return "prefill", {
        "prompt": prompt,
        "turn": turn,
        "row": 0,
        "token_ids": [1, 2],
        "text": text,
        "reused": 0,
    }


def finish(count, prompt="p", turn=1):
    record = {"prompt": prompt, "turn": turn, "row": 0, "token_ids": [0] * count, "new_tokens": count}
    checks = {"cache_difference": {"teacher": 2e-6, "drafter": 1e-7}, "ties": []}
    return "finish", {**record, "finish_reason": "length", "checks": checks}


@pytest.fixture
def trace(tmp_path):
    return trace_of(
        tmp_path / "t.jsonl",
        prefill(),
        ("cycle", cycle(2)),
        ("cycle", cycle(0, n=6)),
        ("cycle", cycle(1, n=7)),
        finish(5),
        prefill(turn=2),
        ("cycle", cycle(1, turn=2)),
        finish(2, turn=2),
    )


def test_the_text_is_coloured_by_origin_and_linked_to_cycles(trace):
    elements = Elements(page(trace))
    tokens = [(e[2], e[1]["class"], e[1]["href"]) for e in elements.all("a", "tok")]
    assert tokens == [
        ("A", "tok drafted", "#t1c1"),
        ("B", "tok drafted", "#t1c1"),
        ("Z", "tok bonus", "#t1c1"),
        ("A", "tok bonus", "#t1c2"),
        ("A", "tok drafted", "#t1c3"),
        ("B", "tok bonus dropped", "#t1c3"),
        ("A", "tok drafted", "#t2c1"),
        ("B", "tok bonus", "#t2c1"),
    ]
    assert [e[1]["id"] for e in elements.all("details", "cycle")] == ["t1c1", "t1c2", "t1c3", "t2c1"]
    ids = [e[1]["id"] for e in elements.found if "id" in e[1]]
    assert len(ids) == len(set(ids))
    assert {e[1]["href"][1:] for e in elements.all("a")} <= set(ids)


def test_a_tree_shows_path_branches_and_the_teachers_word_but_no_padding():
    record = cycle(1)
    args = record["tree"], record["choices"], record["choice_pieces"], record["path"]
    elements = Elements(draw(*args, "a tree"))
    nodes = {(e[2].split("\n")[0], e[1]["class"]) for e in elements.all("g")}
    kinds = [e[1]["class"].removeprefix("node ") for e in elements.all("g")]
    assert sorted(kinds) == ["accepted", "bonus", "rejected", "rejected", "rejected", "root"]
    labels = [e[2] for e in elements.all("text", "token")]
    assert labels == ["R", "A", "B", "B", "y", "x"], nodes
    assert [e[2] for e in elements.all("text", "note")] == ["root", "50 %", "teacher", "80 %", "0 %", "25 %"]
    boxes = [(float(e[1]["x"]), float(e[1]["y"])) for e in elements.all("rect")]
    assert len(set(boxes)) == 6
    assert boxes[0][1] == boxes[1][1] == boxes[2][1]  # the path runs along the top
    assert len(elements.all("path", "edge")) == 5
    (svg,) = elements.all("svg")
    assert all(x < float(svg[1]["width"]) and y < float(svg[1]["height"]) for x, y in boxes)


def test_a_broken_tree_of_an_error_is_drawn_all_the_same(tmp_path):
    tree = cycle(0)["tree"] | {"parents": [0, 0, 99, 4, 3, 0]}
    row = {"prompt": "p", "turn": 1, "row": 0, "token_ids": [1, 2], "n": 1, "tree": tree, "choices": None}
    record = {"error": "InvariantError", "message": "invariant x <b>", "stage": "tensorize", "rows": [row]}
    text = page(trace_of(tmp_path / "t.jsonl", prefill(), ("error", record)))
    elements = Elements(text)
    (section,) = elements.all("section", "error")
    assert "invariant x <b>" in section[2]
    assert "in stage tensorize" in section[2]
    assert len(elements.all("svg")) == 1


def test_figures_count_cycles_tokens_and_times(trace):
    numbers = figures(trace)
    assert (numbers.tokens, numbers.cycles, numbers.accepted) == (7, 4, (1, 2, 1))
    assert numbers.mean_accepted == 1.0
    assert [numbers.reached(depth) for depth in range(3)] == [4, 3, 1]
    assert numbers.seconds == pytest.approx({"draft": 0.01, "verify": 0.05, "accept": 0.001, "checks": 0.2})
    charts = Elements(page(trace)).all("figure")
    said = [" ".join(chart[2].split()) for chart in charts]
    assert said[0].endswith("depth 1 75 % depth 2 25 %")
    assert said[1].endswith("0 1 1 2 2 1")
    assert "verify 50.0 ms" in said[2]


def test_the_teacher_alone_has_no_acceptance(tmp_path):
    records = (prefill(), ("cycle", cycle(0)), finish(1))
    text = page(trace_of(tmp_path / "t.jsonl", *records, drafter="none"))
    assert "accept_L" not in Elements(text).all("section")[0][2]
    assert [e[2].split(" ")[0] for e in Elements(text).all("figcaption")] == ["Time"]


@pytest.mark.parametrize("drafter", ["eagle3", "synthetic"])
def test_synthetic_acceptance_is_marked(tmp_path, drafter):
    text = page(trace_of(tmp_path / "t.jsonl", prefill(), drafter=drafter))
    assert ("nothing about any head" in text) == (drafter == "synthetic")


def test_unfinished_and_torn_traces_say_so(tmp_path):
    path = tmp_path / "t.jsonl"
    assert "ends before its last answer" in page(trace_of(path, prefill(), ("cycle", cycle(1))))
    with open(path, "a") as file:
        file.write('{"record": "cy')
    assert "breaks off inside a line" in page(read_trace(path))


def test_an_empty_trace_is_a_page(tmp_path):
    Elements(page(trace_of(tmp_path / "t.jsonl")))


def evil_trace(path):
    record = cycle(1, (EVIL, EVIL), prompt=EVIL)
    record["tree"]["pieces"] = [EVIL] * 6
    record["choice_pieces"] = [EVIL] * 6
    error = {"error": EVIL, "message": EVIL, "stage": EVIL, "rows": []}
    return trace_of(path, prefill(EVIL, prompt=EVIL), ("cycle", record), ("error", error), drafter="eagle3")


def test_nothing_in_a_trace_becomes_markup(tmp_path, trace):
    trace.manifest["config"]["model"]["source"] = EVIL
    for text in (page(evil_trace(tmp_path / "evil.jsonl")), page(trace)):
        elements = Elements(text)
        assert len(elements.all("script")) == 1
        assert elements.all("img") == []
        assert not any(name.startswith("on") for e in elements.found for name in e[1])
        assert "\x00" not in text
        text.encode()
    assert html.escape("</script><script>") in text


def test_lone_surrogates_do_not_stop_the_page(tmp_path):
    path = tmp_path / "t.jsonl"
    trace_of(path, prefill())
    line = json.dumps({"record": "cycle", **cycle(1, ("\ud800", "\udfff"))})
    path.write_text(f"{path.read_text()}{line}\n")
    assert "�" in page(read_trace(path)).encode().decode()


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (" the", "·the"),
        ("\n\n", "↵↵"),
        ("", "∅"),
        ("\t\r\x07\u202e", "⇥␍⟨7⟩⟨202E⟩"),
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 16 + "…"),
        ("漢" * 9, "漢" * 8 + "…"),
        ("e\u0301" * 3, "e\u0301" * 3),
        ("<b>", "<b>"),
    ],
)
def test_every_character_of_a_label_is_seen(piece, shown):
    assert visible(piece) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0 %"), (1e-5, "<0.1 %"), (0.0042, "0.4 %"), (0.0994, "9.9 %"), (0.0999, "10 %"), (1, "100 %")],
)
def test_percentages(share, shown):
    assert percent(share) == shown


def run_tool(*arguments):
    return subprocess.run([sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True)


def test_the_command_line_writes_the_page_and_names_mistakes(tmp_path, trace):
    out = tmp_path / "page.html"
    done = run_tool(trace.path, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_text(encoding="utf-8") == page(trace)
    missing = run_tool(tmp_path / "none.jsonl", "--out", out)
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: cannot read")
    assert len(missing.stderr.splitlines()) == 1
    beside = run_tool(trace.path)
    assert (beside.returncode, beside.stdout) == (0, f"{trace.path.with_suffix('.html')}\n")
    trace.path.with_suffix(".html").unlink()
    before = trace.path.read_bytes()
    for place, message in ((trace.path, "is read by this run"), (tmp_path / "none" / "p", "no directory")):
        refused = run_tool(trace.path, "--out", place)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert message in refused.stderr
    assert trace.path.read_bytes() == before
    assert not (tmp_path / "none").exists()
    out.write_text("<html>")
    assert "page.html is not a trace: its first line" in run_tool(out, "--out", tmp_path / "o").stderr
    assert run_tool("--help").returncode == 0


def chromium(*arguments, profile):
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr"]
    command = [program, *flags, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_chromium_runs_the_page_without_an_error_and_without_the_network(tmp_path, trace):
    evil_trace(tmp_path / "evil.jsonl")
    for number, source in enumerate((trace, read_trace(tmp_path / "evil.jsonl"))):
        path = tmp_path / f"page{number}.html"
        path.write_text(page(source), encoding="utf-8")
        done = chromium("--dump-dom", f"file://{path}#t1c1", profile=tmp_path / f"profile{number}")
        assert "CONSOLE" not in done.stderr
        elements = Elements(done.stdout.replace("<!DOCTYPE html>", ""))
        cycles = elements.all("details", "cycle")
        assert "current" in cycles[0][1]["class"].split()  # the script ran and followed the link
        assert len(elements.all("svg", "tree")) == sum(len(turn.cycles) for turn in source.turns)
    assert elements.loads == []
    assert "url(" not in page(trace)
    assert "@import" not in page(trace)


def test_the_console_check_sees_errors(tmp_path):
    path = tmp_path / "broken.html"
    path.write_text("<script>nonsense()</script>")
    assert "CONSOLE" in chromium("--dump-dom", f"file://{path}", profile=tmp_path / "profile").stderr
