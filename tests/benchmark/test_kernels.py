"""tools/benchmark_kernels.py as a process: its refusals, its help, and one small measurement."""

import json
import subprocess
import sys

import numpy as np
import pytest

from ms_eagle.benchmark.kernels import pool_of
from ms_eagle.paths import ROOT
from ms_eagle.tree.shape import TreeShape

TOOL = ROOT / "tools" / "benchmark_kernels.py"


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
        *("ms", "drafter_ms", "verify_ms", "rest_ms", "cold_ms", "drafter_of_one_row", "rest_of_cycle")
    }
    assert all(step["ms"] > 0 and step["ratio"] > 0 for step in report["steps"].values())


def test_the_pool_of_the_rest_is_a_tree_whose_best_path_is_moved():
    """A teacher that always says 1 follows it to its full depth, through rows that are not in place."""
    shape = TreeShape(budget=6, depth=3, branch=2)
    tokens, scores, parents, depths = (column.asnumpy()[0] for column in pool_of(shape))
    assert tokens.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert parents.tolist() == [0, 0, 0, 1, 1, 2, 2, 5, 5, 6, 6]
    assert depths.tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    best = {6, 10, 2}
    assert {int(at) for at in np.argsort(-scores, kind="stable")[1:4]} == best
