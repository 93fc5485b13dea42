"""The directory of a bundle: whole or absent, whatever fails, is killed or runs beside."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from ms_eagle.deployment.directory import appearing, check_free
from ms_eagle.errors import UserError

# Begins to write, says so, and goes on for ever.
_WRITER = """
import sys, time
from pathlib import Path
from ms_eagle.deployment.directory import appearing
with appearing(Path(sys.argv[1])) as directory:
    (directory / "weights").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def write(out):
    with appearing(out) as directory:
        (directory / "graph").write_bytes(b"whole")


@pytest.mark.parametrize("there", [False, True])
def test_it_appears_whole(tmp_path, there):
    out = tmp_path / "b"
    if there:
        out.mkdir()
    check_free(out)
    write(out)
    assert os.listdir(tmp_path) == ["b"]
    assert (out / "graph").read_bytes() == b"whole"
    assert out.stat().st_mode & 0o777 == 0o755


def fail(out, number):
    with appearing(out) as directory:
        (directory / "weights").write_bytes(b"half")
        raise OSError(number, os.strerror(number), "weights")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_and_is_said_in_one_line(tmp_path, number):
    with pytest.raises(UserError, match=os.strerror(number)) as caught:
        fail(tmp_path / "b", number)
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


def intrude(out):
    with appearing(out):
        out.mkdir()
        (out / "other").touch()


def test_what_came_between_stays(tmp_path):
    out = tmp_path / "b"
    with pytest.raises(UserError, match="cannot write"):
        intrude(out)
    assert os.listdir(out) == ["other"]
    assert os.listdir(tmp_path) == ["b"]


def test_leftovers_of_the_killed_go_and_those_of_the_living_stay(tmp_path):
    out = tmp_path / "b"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        for path in (out, tmp_path / "other")
    ]
    try:
        assert [writer.stdout.readline() for writer in writers] == ["writing\n"] * 2
        assert len(os.listdir(tmp_path)) == 2
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        write(out)
        assert len(os.listdir(tmp_path)) == 2  # the bundle, and what the second is still writing beside it
        assert (out / "graph").is_file()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()


def test_places_that_cannot_be_replaced_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for name, message in {
        "link": "is a link or a mount",
        "file": "holds something already",
        "file/b": "cannot write",
        "none/b": "no directory that may be written",
        "b" * 300: "File name too long",
    }.items():
        with pytest.raises(UserError, match=message):
            check_free(tmp_path / name)
