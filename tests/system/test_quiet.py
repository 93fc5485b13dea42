"""MindSpore and MindFormers in an empty directory: it stays empty and the terminal shows our lines only."""

import os
import subprocess
import sys

import pytest

from ms_eagle.system import quiet

PROGRAM = """
import sys
from ms_eagle.cli import command_line

def main(argv):
    command_line.begin("--verbose" in argv)
    import mindspore as ms
    import mindformers
    from mindspore import Tensor, nn, ops
    import numpy as np
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")

    class Good(nn.Cell):
        def construct(self, x):
            return ops.softmax(x @ x)

    class Bad(nn.Cell):
        def construct(self, x):
            return x.no_such_thing()

    print("ours", Good()(Tensor(np.ones((2, 2), np.float32))).asnumpy()[0, 0])
    print("ours too", file=sys.stderr)
    if "fail" in argv:
        Bad()(Tensor(np.ones((2, 2), np.float32)))
    return 0

command_line.run(main)
"""


@pytest.fixture
def run(tmp_path):
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    unset = {*quiet._PLACES, "GLOG_v", "XDG_CACHE_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}

    def start(*arguments):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        done = subprocess.run(
            [sys.executable, str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=here,
            env={**environment, "HOME": str(home)},
        )
        assert list(here.iterdir()) == []
        return done, {str(path.relative_to(home)) for path in home.rglob("*")}

    return start


def test_success_shows_our_lines_only(run):
    done, files = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "ours 0.5\n", "ours too\n")
    assert any(name.startswith(".cache/ms_eagle/mindformers/log") for name in files)
    assert all(name.split("/")[:2] in ([".cache"], [".cache", "ms_eagle"]) for name in files)


def test_a_failing_compile_leaves_its_report_in_the_cache(run):
    done, files = run("fail")
    assert done.returncode == 1
    assert done.stdout == "ours 0.5\n"
    assert done.stderr.startswith("ours too\nTraceback (most recent call last):\n")
    assert "no_such_thing" in done.stderr
    assert "analyze_fail.ir" in done.stderr.partition("libraries underneath")[2]
    assert ".cache/ms_eagle/mindspore/rank_0/om/analyze_fail.ir" in files


def test_verbose_brings_the_messages_back(run):
    done, _ = run("--verbose")
    assert done.returncode == 0
    assert "[WARNING]" in done.stdout + done.stderr
    assert "ours 0.5\n" in done.stdout


def test_places_set_by_the_user_are_kept(monkeypatch, tmp_path):
    for name in quiet._PLACES:
        monkeypatch.setenv(name, "")  # counts as unset, and is restored afterwards
    monkeypatch.setenv("MS_OM_PATH", "/elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quiet.start(verbose=True)
    assert os.environ["MS_OM_PATH"] == "/elsewhere"
    for name in set(quiet._PLACES) - {"MS_OM_PATH"}:
        assert os.path.isdir(os.environ[name])
        assert os.environ[name].startswith(str(tmp_path))


def test_an_unwritable_home_falls_back_to_the_temporary_directory(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert quiet.writable_cache().name == f"ms_eagle-{os.getuid()}"


def test_the_tail_of_hidden_output_is_bounded():
    program = (
        "import os\nfrom ms_eagle.system.quiet import HiddenOutput\nh = HiddenOutput()\n"
        "os.write(2, b'x' * 10000 + b'\\xff' + b'end\\n')\nt = h.tail()\nprint(len(t), t[-4:].encode())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{quiet._TAIL - 1} {'�end'.encode()}\n"
