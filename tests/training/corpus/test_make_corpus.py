"""tools/make_corpus.py as a process: its refusals, a kill and Ctrl-C in the middle, and going on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import user_like

from ms_eagle.paths import ROOT
from ms_eagle.system import quiet
from ms_eagle.text.prompts import read_prompts
from ms_eagle.training.corpus.storage import read_corpus

TOOL = ROOT / "tools" / "make_corpus.py"
SEED = ROOT / "configs" / "prompts" / "train_seed.jsonl"


def start(*arguments):
    kept = {*quiet._PLACES, "GLOG_v"}  # set for the test process by its own quiet start
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, str(TOOL), *map(str, arguments)], env=environment, **pipes)


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def refusal(*arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ")


def test_refusals_before_anything_is_loaded(tmp_path):
    out = tmp_path / "c.npz"
    evaluation = tmp_path / "eval" / "deeper"
    evaluation.mkdir(parents=True)
    held_out = evaluation / "questions.jsonl"
    held_out.write_text('{"turns": ["Hello"]}\n')
    (tmp_path / "innocent.jsonl").symlink_to(held_out)
    for arguments, message in (
        ([], "the following arguments are required: --out"),
        (["--out", tmp_path / "c.txt"], f"--out {tmp_path / 'c.txt'}: expected a name that ends in .npz"),
        (["--out", held_out / "c.npz"], f"--out: cannot make the directory of {held_out / 'c.npz'}"),
        (["--out", out, "--self", "-1"], "--self is -1; expected 0 or more"),
        (["--out", out, "--batch", "0"], "--batch is 0; expected 1 or more"),
        (["--out", out, "--prompts", tmp_path / "none"], f"{tmp_path / 'none'}: No such file"),
        (["--out", out, "--prompts", held_out], f"{held_out} lies in a folder named eval"),
        (["--out", out, "--prompts", tmp_path / "innocent.jsonl"], f"{tmp_path / 'innocent.jsonl'} lies in"),
        (["--out", out, "--import", evaluation / "c.npz"], f"{evaluation / 'c.npz'} lies in a folder named"),
    ):
        assert refusal(*arguments).startswith(message)
    assert not out.exists()
    assert "no conversation is left" in refusal("--out", tmp_path / "new" / "c.npz")  # its directory is made


def test_bundled_prompts_are_various():
    prompts = read_prompts(SEED)
    assert len(prompts) >= 250
    assert len({prompt.turns[0] for prompt in prompts}) == len(prompts)
    assert sum(len(prompt.turns) > 1 for prompt in prompts) >= 30
    counts = {prompt.category: 0 for prompt in prompts}
    for prompt in prompts:
        counts[prompt.category] += 1
    assert set(counts) >= {
        "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
    }  # fmt: skip
    assert min(counts.values()) >= 20


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    """Arguments of a small corpus."""
    root = tmp_path_factory.mktemp("make_corpus")
    config = user_like.config(root / "c.yaml", user_like.save(root / "model"))
    prompts = root / "asked.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"tell me {n} things"]}) + "\n" for n in range(300)))
    return ["--config", config, "--prompts", prompts, "--batch", "4", "--max-new-tokens", "24"]


def interrupted(order, out, number):
    """Signal a run that has begun to finish work; returns its end and how much it had finished."""
    parts = out.with_name(f"{out.name}.parts")
    enough = len(list(parts.glob("[0-9]*.json"))) + 5
    process = start(*order, "--out", out)
    deadline = time.monotonic() + 200
    while len(list(parts.glob("[0-9]*.json"))) < enough and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err, len(list(parts.glob("[0-9]*.json")))


def test_a_killed_run_goes_on(order, tmp_path):
    out = tmp_path / "c.npz"
    status, _, finished = interrupted(order, out, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert not out.exists()
    status, err, later = interrupted([*order, "--verbose"], out, signal.SIGINT)
    assert status == 130
    assert "finished work is kept: the same command goes on with it" in err
    assert later > finished >= 5
    status, printed, _ = run(*order, "--out", out)
    assert status == 0
    corpus = read_corpus(out)
    assert len(set(corpus.keys)) + len(corpus.dropped) == 300
    assert printed.startswith(f"{out}: {len(corpus)} conversations, {corpus.role.sum()} answer tokens\n")
    assert list(tmp_path.iterdir()) == [out]
    before = out.read_bytes()
    assert run(*order, "--out", out) == (0, f"{out} is complete: it holds all that was asked for\n", "")
    assert out.read_bytes() == before
