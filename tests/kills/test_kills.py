"""Killed again and again at random moments, whatever writes files ends with what a quiet run writes.

``pytest -m slow tests/kills`` kills each fifty times, ``--kills N`` as often as you like. All files are
compared byte for byte, but for what says when or how fast something was: of a training run the seconds of
``steps.csv`` and of the checkpoint, the hours of the head's card and the curves; of a benchmark the times.
"""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support import slow_hub, tiny, tiny_eagle, tiny_gguf, toy_run, user_like
from support.commands import environment
from support.turn_files import timeless

from ms_eagle.paths import ROOT

# Resolves a source. Pieces of a GGUF file come slowly, so that its conversion takes a while.
RESOLVE = """
import sys, time
from pathlib import Path
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.gguf import importing

def slowly(*arguments, read_rows=importing.read_rows):
    for piece in read_rows(*arguments):
        time.sleep(0.02)
        yield piece

importing.read_rows = slowly
sources.resolve(sys.argv[1], cache_dir=Path(sys.argv[2]))
"""
CLOCK = {"train.yaml", "curves.svg", "lock"}


@dataclass(frozen=True)
class Work:
    """What is killed.

    Attributes:
        command: of a run that writes below a directory, given last.
        content: what it wrote there, to be compared.
        variables: of its environment.
        again: exit status of a run that finds all done.
    """

    command: list[str]
    content: Callable[[Path], object]
    variables: dict[str, str]
    again: int = 0

    def start(self, out: Path) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *self.command, str(out)],
            cwd=ROOT,
            env=environment() | self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, out: Path, status: int = 0) -> tuple[object, float]:
        """Run it to its end, which is ``status``; return what it wrote, and its seconds."""
        begin = time.monotonic()
        process = self.start(out)
        _, err = process.communicate(timeout=600)
        assert process.returncode == status, err
        return self.content(out), time.monotonic() - begin


def every_file(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def models(cache: Path) -> dict[str, bytes]:
    """What a model's cache holds, but for the inodes and times of files, and empty locks."""
    left = every_file(cache)
    assert not [name for name in left if ".tmp/" in name]
    return {name: data for name, data in left.items() if data and not name.endswith("/seen.json")}


def training(out: Path) -> dict[str, object]:
    left: dict[str, object] = {
        name: data for name, data in every_file(out / "run").items() if name not in CLOCK
    }
    with open(out / "run" / "steps.csv", newline="") as file:
        left["steps.csv"] = [{**row, "seconds": None} for row in csv.DictReader(file)]
    with np.load(out / "run" / "checkpoint.npz") as checkpoint:
        state = {name: checkpoint[name].tobytes() for name in checkpoint.files if name != "progress"}
    card = next(name for name in left if name.endswith("README.md"))
    lines = left[card].decode().splitlines()
    return left | {"checkpoint.npz": state, card: [line for line in lines if "hours" not in line]}


def download(root: Path) -> Iterator[Work]:
    tiny.save("llama", root / "original")
    server = slow_hub.serve(root / "original")
    variables = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_CACHE": str(root / "hub")}
    variables |= {name: "" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    yield Work(["-c", RESOLVE, "hf:org/tiny"], lambda out: models(root / "hub"), variables)
    server.shutdown()
    server.server_close()


def conversion(root: Path) -> Iterator[Work]:
    source = tiny_gguf.save(root / "model.gguf", tiny.make("llama"))
    yield Work(["-c", RESOLVE, str(source)], models, {})


def export(root: Path) -> Iterator[Work]:
    tiny_eagle.config(tiny_eagle.model_dir("qwen3", root), None)
    command = ["tools/export.py", "--target", "cpu", "--config", str(root / "tiny_eagle.yaml"), "--out"]
    yield Work(command, every_file, {}, again=2)


def corpus(root: Path) -> Iterator[Work]:
    config = user_like.config(root / "c.yaml", user_like.save(root / "model"))
    asked = [json.dumps({"turns": [f"tell me {n} things"]}) + "\n" for n in range(60)]
    (root / "asked.jsonl").write_text("".join(asked))
    options = ["--prompts", str(root / "asked.jsonl"), "--batch", "4", "--max-new-tokens", "24"]
    command = ["tools/make_corpus.py", "--config", str(config), *options]
    yield Work(["-c", INSIDE.format("c.npz"), *command, "--out"], every_file, {})


def train(root: Path) -> Iterator[Work]:
    teacher = toy_run.teacher(root)
    data = toy_run.corpus(root / "c.npz", teacher, [20, 25, 9, 30, 14, 31, 28, 12, 40])
    config = toy_run.config(
        root,
        teacher,
        data,
        data={"held_out": 0.2},
        optimization={"steps": 16},
        evaluation={"interval": 8},
        output={"checkpoint_interval": 2},
    )
    command = ["tools/train_draft.py", "--config", str(config), "--out"]
    yield Work(["-c", INSIDE.format("run"), *command], training, {})


def benchmark(root: Path) -> Iterator[Work]:
    drafter = ["drafter.kind=synthetic", "drafter.taps=[0,1]", "generation.max_new_tokens=8"]
    tiny_eagle.config(tiny_eagle.model_dir("qwen3", root), None, drafter)
    turns = [["The fox", "and the dog?"], ["Prices", "rose"], ["One"]]
    (root / "talk.jsonl").write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns))
    command = ["tools/benchmark.py", "--config", str(root / "tiny_eagle.yaml")]
    command += [part for each in drafter for part in ("--set", each)]
    yield Work([*command, "--prompts", str(root / "talk.jsonl"), "--out"], timeless, {})


# Runs a tool on a name within the directory that is given last.
INSIDE = """
import os, sys
arguments = sys.argv[1:]
os.makedirs(arguments[-1], exist_ok=True)
arguments[-1] += "/{}"
os.execv(sys.executable, [sys.executable, *arguments])
"""


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [download, conversion, export, corpus, train, benchmark])
def test_whatever_is_killed_ends_as_a_quiet_run_does(prepare, tmp_path, request):
    kill_until_done(prepare, tmp_path, request.config.getoption("--kills"))


def test_a_conversion_that_is_killed_a_few_times(tmp_path):
    kill_until_done(conversion, tmp_path, 3)


def kill_until_done(prepare: Callable[[Path], Iterator[Work]], root: Path, kills: int) -> None:
    moments = random.Random(f"{prepare.__name__} {kills}")
    preparing = prepare(root)
    work, out = next(preparing), root / "out"
    places = [out, root / "hub"]  # of everything that a run writes

    def fresh() -> None:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)

    try:
        expected, seconds = work.finish(out)
        fresh()
        while kills:
            process = work.start(out)
            try:
                _, err = process.communicate(timeout=moments.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                kills -= 1
            else:  # it was sooner
                assert process.returncode == 0, err
                assert work.content(out) == expected
                fresh()
        assert work.finish(out)[0] == expected
        assert work.finish(out, work.again)[0] == expected  # and what is done stays as it is
    finally:
        preparing.close()
