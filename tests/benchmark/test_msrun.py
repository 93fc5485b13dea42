"""Two workers of msrun make the run of a single process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny_eagle
from support.commands import environment
from support.turn_files import timeless

from ms_eagle.paths import ROOT

TOOL = ROOT / "tools" / "benchmark.py"
MSRUN = Path(sys.executable).parent / "msrun"


@pytest.mark.slow
def test_two_workers(tmp_path):
    model = tiny_eagle.model_dir("qwen3", tmp_path)
    tiny_eagle.config(model, None)  # writes the file
    prompts = tmp_path / "p.jsonl"
    turns = [["One"], ["Two", "and"], ["Three"]]
    prompts.write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns))
    ports = ["--master_port", "8127", "--join", "True", "--log_dir", str(tmp_path / "log")]
    launch = [str(MSRUN), "--worker_num=2", "--local_worker_num=2", *ports]
    settings = ["drafter.kind=synthetic", "drafter.taps=[0,1]", *tiny_eagle.TREE]
    arguments = [str(TOOL), "--config", str(model.parent / "tiny_eagle.yaml"), "--prompts", str(prompts)]
    arguments += ["--max-new-tokens", "6", "--profile", "0", *(f"--set={each}" for each in settings)]
    outs = [tmp_path / "two", tmp_path / "one"]
    for command, out in zip(([*launch], [sys.executable]), outs, strict=True):
        done = subprocess.run(
            [*command, *arguments, "--out", str(out)],
            cwd=tmp_path,
            env={**environment(), "PATH": f"{MSRUN.parent}:{os.environ['PATH']}"},  # msrun starts `python`
            capture_output=True,
            text=True,
            timeout=600,
        )
        logs = "".join(path.read_text() for path in (tmp_path / "log").glob("*.log"))
        assert done.returncode == 0, done.stderr + logs
    assert timeless(outs[0]) == timeless(outs[1])
    summary = json.loads((outs[0] / "summary.json").read_text())
    assert (summary["turns"], summary["tokens_match"], summary["incomplete_ranks"]) == (4, 1.0, {})
    assert summary["manifest"]["workers"] == 2
    shutil.rmtree(tmp_path / "log")
