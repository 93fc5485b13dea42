"""Whole runs over a tiny teacher: a head that learns its text by heart, and everything that is refused."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import tiny_eagle, toy_run

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.paths import ROOT
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress
from ms_eagle.training.config import load_training_config
from ms_eagle.training.corpus.provenance import Provenance
from ms_eagle.training.corpus.storage import Row, build, write_corpus
from ms_eagle.training.features import cache as feature_cache
from ms_eagle.training.preparation import open_sources, open_start
from ms_eagle.training.run import checkpoint as run_checkpoint
from ms_eagle.training.run.metrics import read
from ms_eagle.training.run.session import train

TOOL = ROOT / "tools" / "train_draft.py"
DEPTH, NEW = 3, 30


def run(path: Path, *overrides: str) -> list[str]:
    """Train in this process to the end; what was said."""
    said = []
    config = load_training_config(path, list(overrides))
    assert train(config, Progress(quiet=True), said.append, parallel=False) is None
    return said


def test_a_sentence_is_learnt_by_heart(tmp_path):
    teacher = toy_run.teacher(tmp_path)
    directory = tmp_path / "model-llama_tied-0"
    engine = tiny_eagle.engine(directory, None)
    prompt = engine.tokenizer.encode("The quick brown fox", add_special_tokens=True)
    options = GenerationOptions(NEW, SamplingParams(), ignore_eos=True)
    (told,) = engine.generate([prompt], options)
    ids = [*prompt, *told.token_ids]
    made = Provenance(**toy_run.provenance(teacher))
    write_corpus(tmp_path / "c.npz", build([Row("one", "toy", ids, ((len(prompt), len(ids)),))], made, {}))
    path = toy_run.config(
        tmp_path,
        teacher,
        tmp_path / "c.npz",
        data={"held_out": 0.0},
        optimization={
            "ttt_steps": DEPTH,
            "rows": 1,
            "row_length": 64,
            "steps": 120,
            "learning_rate": 0.01,
            "clip": 5.0,
        },
        evaluation={"interval": 30, "depth": DEPTH},
    )
    run(path)
    evaluations = read(tmp_path / "run" / "evaluations.csv")
    assert max(row["accept_L"] for row in evaluations) == DEPTH
    # The published head says so too, where heads are used: every draft of a chain is accepted.
    tree = [f"tree.budget={DEPTH}", f"tree.depth={DEPTH}", "tree.branch=1"]
    (drafted,) = tiny_eagle.engine(directory, tmp_path / "run" / "head", tree).generate([prompt], options)
    assert drafted.token_ids == told.token_ids
    assert drafted.cycles <= NEW / (DEPTH + 1) + 3
    # And another run can start from it, with its draft vocabulary.
    config = load_training_config(path, [f"head.start={tmp_path / 'run' / 'head'}"])
    start = open_start(config, open_sources(config, Progress(quiet=True)), None)
    head = load_head(tmp_path / "run" / "head", teacher=toy_run.decoder(teacher))
    np.testing.assert_array_equal(start.vocabulary.target_ids, head.d2t)
    for name, values in head.tensors.items():
        np.testing.assert_array_equal(start.tensors[name], values)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A teacher, a corpus and the configuration of a short run, with its features on disk."""
    parent = tmp_path_factory.mktemp("toy")
    teacher = toy_run.teacher(parent)
    corpus = toy_run.corpus(parent / "c.npz", teacher, [20, 25, 9, 30, 14, 31, 28, 12, 40])
    return toy_run.config(
        parent,
        teacher,
        corpus,
        data={"features": str(parent / "features"), "held_out": 0.2},
        optimization={"steps": 16},
        evaluation={"interval": 8},
        output={"checkpoint_interval": 1},
    )


def test_a_killed_run_continues_where_it_was(toy, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, TOOL, "--config", toy, "--out", out], stdout=subprocess.PIPE, text=True
    )
    said = [process.stdout.readline() for _ in range(3)]  # the third follows the first evaluation
    while process.poll() is None and len(read(out / "steps.csv")) < 3:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert said[2].startswith("step 0: accept_L ")
    before, _ = run_checkpoint.load(out / "checkpoint.npz")
    assert 0 < before.step < 16
    done = read(out / "steps.csv")[: before.step]
    assert run(toy, f"output.directory={out}")[2] == f"continuing after step {before.step} of 16"
    assert run_checkpoint.load(out / "checkpoint.npz")[0].step == 16
    steps = read(out / "steps.csv")
    assert [row["step"] for row in steps] == list(range(1, 17))
    assert steps[: before.step] == done
    assert [row["step"] for row in read(out / "evaluations.csv")] == [0, 8, 16]
    names = "checkpoint.npz curves.svg evaluations.csv head lock run.json steps.csv"
    assert {path.name for path in out.iterdir()} == set(names.split())


def test_what_does_not_belong_together_is_refused(toy, tmp_path):
    corpus = Path(load_training_config(toy).data.corpus)
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(corpus.read_bytes()[:-40])
    stranger = toy_run.teacher(tmp_path, seed=1)
    head = tiny_eagle.head_dir(tmp_path / "model-llama_tied-1", tmp_path, taps=toy_run.TAPS)
    for override, message in (
        (f"data.corpus={damaged}", "damaged.npz is damaged or no corpus"),
        (f"data.corpus={tmp_path}/none.npz", "none.npz: no such file; expected a corpus"),
        (f"data.teacher={stranger}", "was made with another teacher: its sha256 is [0-9a-f]{64}"),
        ("data.draft_vocab_size=1000000", "data.draft_vocab_size is 1000000; expected"),
        ("head.taps=[0, 2]", "the teacher has blocks 0 to 1"),
        ("head.start=tmp", "head.start is tmp; expected teacher, random or the directory of a head"),
        (f"head.start={head}", "head in .* has num_heads 4, the configuration asks for 6"),
    ):
        with pytest.raises(UserError, match=message):
            run(toy, f"output.directory={tmp_path / 'run'}", override)


def test_a_full_disk_is_told_in_a_line(toy, tmp_path, monkeypatch):
    def full(path, *figures):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(feature_cache, "write_conversations", full)
    config = [f"output.directory={tmp_path / 'run'}", f"data.features={tmp_path / 'f'}"]
    with pytest.raises(UserError, match="No space left on device; the last checkpoint is untouched"):
        run(toy, *config)
