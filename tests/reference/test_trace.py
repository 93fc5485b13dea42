"""Trace files: written line by line, read strictly, readable after a kill."""

import os
import signal
import subprocess
import sys

import pytest

from ms_eagle.errors import UserError
from ms_eagle.reference.trace import SCHEMA, TraceWriter, read_trace

MANIFEST = {"schema": SCHEMA, "drafter": "none"}
HERE = {"prompt": "p", "turn": 1, "row": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def write(path, *records):
    writer = TraceWriter(path)
    for kind, record in records:
        writer.write(kind, record)
    writer.close()


def test_records_come_back_by_turn(path):
    write(
        path,
        ("manifest", MANIFEST),
        ("prefill", {**HERE, "text": "é\n\u2028"}),
        ("prefill", {**HERE, "row": 1}),
        ("cycle", {**HERE, "n": 1}),
        ("cycle", {**HERE, "row": 1, "n": 2}),
        ("finish", HERE),
        ("prefill", {**HERE, "text": "the same name again, after a reset"}),
        ("cycle", {**HERE, "n": 3}),
        ("error", {"message": "m"}),
    )
    trace = read_trace(path)
    assert [[c["n"] for c in turn.cycles] for turn in trace.turns] == [[1], [2], [3]]
    assert [turn.finish is not None for turn in trace.turns] == [True, False, False]
    assert trace.turns[0].prefill["text"] == "é\n\u2028"
    assert [e["message"] for e in trace.errors] == ["m"]
    assert not trace.torn


@pytest.mark.parametrize("kept", range(1, 40, 7))
def test_a_torn_last_line_is_left_out(path, kept):
    write(path, ("manifest", MANIFEST), ("prefill", HERE), ("finish", {**HERE, "text": "é" * 9}))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    path.write_bytes(whole[: last + kept])
    trace = read_trace(path)
    assert trace.torn
    assert trace.turns[0].finish is None


def test_a_killed_process_leaves_what_it_wrote(path):
    program = (
        "import os, signal, sys, pathlib\n"
        "from ms_eagle.reference.trace import TraceWriter\n"
        "writer = TraceWriter(pathlib.Path(sys.argv[1]))\n"
        f"writer.write('manifest', {MANIFEST!r})\n"
        f"writer.write('prefill', {HERE!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    trace = read_trace(path)
    assert len(trace.turns) == 1
    assert not trace.torn


def test_a_new_trace_replaces_the_old(path):
    write(path, ("manifest", MANIFEST), ("prefill", HERE), ("finish", HERE))
    write(path, ("manifest", MANIFEST), ("prefill", HERE))
    assert read_trace(path).turns[0].finish is None


def test_no_directory_is_made(tmp_path):
    with pytest.raises(UserError, match="there is no directory"):
        TraceWriter(tmp_path / "new" / "trace.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a trace: its first line is not a manifest"),
        (b'{"record": "prefill"}\n', "is not a trace: its first line is not a manifest"),
        (b'{"record": "manifest", "schema": 2}\n', "schema 2; expected 1"),
        (b'{"record": "manifest"}\n', "schema None; expected 1"),
        (
            b'{"record": "manifest", "schema": 1}\nnonsense\n',
            "trace.jsonl:2: not valid JSON; expected a record",
        ),
        (
            b'{"record": "manifest", "schema": 1}\n[]\n',
            "trace.jsonl:2: not a record; expected a record of kind",
        ),
        (
            b'{"record": "manifest", "schema": 1}\n{"record": "x"}\n',
            "trace.jsonl:2: not a record; expected a record",
        ),
        (b'{"record": "manifest", "schema": 1}\n{"record": "cycle"}\n', "trace.jsonl:2: .*lacks 'prompt'"),
        (
            b'{"record": "manifest", "schema": 1}\n{"record":"cycle","prompt":"p","turn":1,"row":0}\n',
            "trace.jsonl:2: the cycle record lacks 'a prefill record before it'",
        ),
        (b"\xff\n", "trace.jsonl is not a trace: its first line is not valid JSON; expected a file"),
    ],
)
def test_other_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_trace(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(UserError, match=r"cannot read .*trace\.jsonl: No such file"):
        read_trace(path)


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"execution\.trace: cannot write"):
        TraceWriter(tmp_path / "file" / "trace.jsonl")


def test_a_full_disk_is_named():
    writer = TraceWriter(__import__("pathlib").Path("/dev/full"))
    writer.write("manifest", MANIFEST)
    with pytest.raises(UserError, match="No space left"):
        writer.write("prefill", HERE)


def test_a_refusal_before_the_first_answer_leaves_an_earlier_trace_alone(path):
    refused = {"error": "UserError", "message": "no"}
    path.write_text("earlier")
    writer = TraceWriter(path)
    writer.write("manifest", MANIFEST)
    writer.write("error", refused)
    writer.close()
    assert path.read_text() == "earlier"
    write(path, ("manifest", MANIFEST), ("error", {"error": "InvariantError"}))
    assert read_trace(path).errors[0]["error"] == "InvariantError"
    write(path, ("manifest", MANIFEST), ("prefill", HERE), ("error", refused))
    assert [e["message"] for e in read_trace(path).errors] == ["no"]
    path.unlink()
    write(path, ("manifest", MANIFEST), ("error", refused))
    assert [e["message"] for e in read_trace(path).errors] == ["no"]
