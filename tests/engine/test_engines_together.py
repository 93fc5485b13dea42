"""Two engines at once: in one process, whose threads and kernels they share, and in two processes."""

import json
import os
import subprocess
import sys

import pytest
from support import tiny, tiny_engine
from support.two_engines import OPTIONS, PROMPTS, answers, speculating

from ms_eagle.paths import ROOT

PROGRAM = """
import json, os, sys
core = int(sys.argv[1])
if core >= 0:
    os.sched_setaffinity(0, {core})
from ms_eagle.system import quiet
quiet.start(verbose=False)
import mindspore as ms
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")
from support import two_engines as here
print(json.dumps(here.answers(here.speculating())))
"""


@pytest.fixture(scope="module")
def alone():
    """What the speculating engine says with nothing beside it, and the engine."""
    engine = speculating()
    return answers(engine), engine


def test_two_engines_in_one_process_take_turns(alone):
    wanted, first = alone
    second = tiny_engine.plain(tiny.make("qwen3", seed=1))
    others = answers(second)
    for options, prompt in ((o, p) for o in OPTIONS for p in PROMPTS):
        row = OPTIONS.index(options) * len(PROMPTS) + PROMPTS.index(prompt)
        assert list(first.generate([prompt], options)[0].token_ids) == wanted[row]
        assert list(second.generate([prompt], options)[0].token_ids) == others[row]
    assert wanted != others


def test_two_processes_on_two_cores(alone):
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [-1, -1]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(core)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for core in (cores * 2)[:2]
    ]
    for run in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        assert json.loads(out) == alone[0]
