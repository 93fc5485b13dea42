"""tools/benchmark_kernels.py as a process: its refusals, its help, and one small measurement."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "benchmark_kernels.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("option", ["--threads", "--rounds", "--contexts", "--layers"])
@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_numbers_are_at_least_1(option, value):
    done = run(option, value)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: argument {option}: ")
    assert "--help" in done.stderr


def test_help_has_examples_defaults_and_exit_statuses():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("examples:", "exit status:", "(default: 20)", "(default: 30)", "256 1024 4096 8192)"):
        assert words in " ".join(done.stdout.split())


def test_one_layer_is_measured():
    done = run("--threads", "1", "--rounds", "1", "--layers", "1", "--contexts", "8", "--json")
    if done.returncode == 2 and done.stderr.startswith("error: native kernels are not available"):
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["threads"] == 1
    assert {"1 rows at 8", "1 rows at 256", "33 rows at 256"} <= set(report["steps"])
    assert set(report["cycle"]) == {
        *("ms", "drafter_ms", "verify_ms", "rest_ms", "drafter_of_one_row", "rest_of_cycle")
    }
    assert all(step["ms"] > 0 and step["ratio"] > 0 for step in report["steps"].values())
