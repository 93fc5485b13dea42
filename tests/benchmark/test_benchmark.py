"""tools/benchmark.py as a process: its refusals and its help."""

import subprocess
import sys

import pytest

from ms_eagle.paths import ROOT

TOOL = ROOT / "tools" / "benchmark.py"


def run(here, *arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, ": No such file or directory; expected a JSONL file of prompts"),
        (b"# Notes\n\nnothing here\n", ":1: not valid JSON"),
        (b'{"prompt": "Hello"}\n', ':1: "turns" is missing (found "prompt")'),
        (b"", ": holds no prompts"),
    ],
)
def test_a_missing_or_foreign_prompts_file_is_one_line(tmp_path, data, message):
    path = tmp_path / "p.jsonl"
    if data is not None:
        path.write_bytes(data)
    done = run(tmp_path, "--prompts", path, "--set", "drafter.kind=synthetic", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {path}{message}")
    assert not (tmp_path / "out").exists()


def test_numbers_are_whole(tmp_path):
    for option, least in (("--limit", 1), ("--max-new-tokens", 1), ("--profile", 0)):
        done = run(tmp_path, option, least - 1)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"expected a whole number of at least {least}" in done.stderr


def test_help_names_the_files_and_their_keys(tmp_path):
    done = run(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("summary.json", "turns.jsonl", "tokens_match", "p1 is the slow tail", "exit status:"):
        assert words in done.stdout
