"""One process at a time: waiting, killed owners, hung owners."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ms_eagle.errors import UserError
from ms_eagle.system.locks import FileLock

OWNER = """
import sys, time
from pathlib import Path
from ms_eagle.system.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.acquire(0, print)
print("mine", flush=True)
for _ in range(200):
    time.sleep(0.1)
    if sys.argv[2] == "beats":
        lock.beat()
"""


@pytest.fixture
def owner(tmp_path):
    """Starts a process that holds the lock; ends it afterwards."""
    started = []

    def start(how: str) -> subprocess.Popen:
        command = [sys.executable, "-c", OWNER, str(tmp_path / "lock"), how]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout.readline() == "mine\n"
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_owner_does_not_keep_it(tmp_path, owner):
    process, told = owner("beats"), []

    def kill(line: str) -> None:
        told.append(line)
        os.kill(process.pid, signal.SIGKILL)

    lock = FileLock(tmp_path / "lock")
    lock.acquire(60, kill)
    assert len(told) == 1
    assert f"waiting for process {process.pid} on " in told[0]
    lock.release()


def test_an_owner_that_hangs_is_named(tmp_path, owner):
    process = owner("hangs")
    with pytest.raises(UserError, match=f"held by process {process.pid} on .* no sign of life for 1 s"):
        FileLock(tmp_path / "lock").acquire(1, lambda line: None)


def test_an_owner_that_works_is_waited_for(tmp_path, owner):
    process, begin = owner("beats"), time.monotonic()
    waiter = FileLock(tmp_path / "lock")

    def wait(line: str) -> None:
        # Longer than the patience: its beats keep the owner alive to us. Then it ends.
        subprocess.Popen(["sh", "-c", f"sleep 2; kill {process.pid}"])

    waiter.acquire(1, wait)
    assert time.monotonic() - begin >= 2
    waiter.release()


def test_no_patience_does_not_wait(tmp_path):
    first, second = FileLock(tmp_path / "a" / "lock"), FileLock(tmp_path / "a" / "lock")
    first.acquire(0, pytest.fail)
    with pytest.raises(UserError, match=f"is held by process {os.getpid()} on .*: wait for it to end"):
        second.acquire(0, pytest.fail)
    first.release()
    second.acquire(0, pytest.fail)
    second.release()
    second.release()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot make the lock .*/file/lock: "):
        FileLock(tmp_path / "file" / "lock").acquire(0, pytest.fail)
