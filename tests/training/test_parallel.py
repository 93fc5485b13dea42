"""Two workers under msrun do what one does with twice the rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import toy_run

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.paths import ROOT
from ms_eagle.system.progress import Progress
from ms_eagle.training.config import load_training_config
from ms_eagle.training.run.metrics import read
from ms_eagle.training.run.session import train


@pytest.mark.slow
def test_two_workers_equal_one_with_twice_the_rows(tmp_path):
    teacher = toy_run.teacher(tmp_path)
    # Rows of equal numbers of answers: then a mean of two workers' means is the mean of all.
    corpus = toy_run.corpus(tmp_path / "c.npz", teacher, [32] * 12)
    path = toy_run.config(
        tmp_path,
        teacher,
        corpus,
        data={"features": str(tmp_path / "features")},
        optimization={"rows": 1, "learning_rate": 0.003},
        output={"dtype": "float32"},
    )
    command = ["msrun", "--worker_num=2", "--local_worker_num=2", "--master_port=8719", "--join=True"]
    logs = f"--log_dir={tmp_path / 'logs'}"
    tool = [ROOT / "tools" / "train_draft.py", "--parallel", "--config", path, "--out", tmp_path / "two"]
    programs = Path(sys.executable).parent
    process = subprocess.Popen(
        [programs / command[0], *command[1:], logs, *tool],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},  # msrun starts what is called python
    )
    try:
        assert process.wait(300) == 0
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(20)
    config = load_training_config(path, ["optimization.rows=2", f"output.directory={tmp_path / 'one'}"])
    train(config, Progress(quiet=True), lambda line: None, parallel=False)
    decoder = toy_run.decoder(teacher)
    two, one = (load_head(tmp_path / name / "head", teacher=decoder).tensors for name in ("two", "one"))
    start, end = read(tmp_path / "one" / "steps.csv"), read(tmp_path / "two" / "steps.csv")
    assert len(start) == len(end) == 4
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-3, atol=1e-4)
