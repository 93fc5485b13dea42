"""tools/infer.py as a process."""

import os
import subprocess
import sys

from ms_eagle.paths import ROOT
from ms_eagle.system import quiet

TOOL = ROOT / "tools" / "infer.py"


def command(*arguments):
    return [sys.executable, str(TOOL), *map(str, arguments)]


def environment():
    mine = {*quiet._PLACES, "GLOG_v"}  # set for the test process by its own quiet start
    return {name: value for name, value in os.environ.items() if name not in mine}


def infer(here, *arguments, stdin=b""):
    done = subprocess.run(
        command(*arguments), cwd=here, input=stdin, capture_output=True, timeout=120, env=environment()
    )
    assert list(here.iterdir()) == []
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refusal(here, *arguments, stdin=b""):
    """The one line of a refused run."""
    status, out, err = infer(here, *arguments, stdin=stdin)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")
