"""Locks that several processes share through a file; the system frees those of a process that ends."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ms_eagle.errors import UserError

_POLL_SECONDS = 0.2


def try_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or directory until it is closed.

    Args:
        descriptor: of the file.
        shared: let others share the lock who ask for it so.
        wait: until it can be had.

    Returns: whether it could be had.

    Raises:
        OSError: its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


class FileLock:
    """One process at a time; the operating system frees the lock when its owner ends, killed or not.

    The owner's sign of life is the file's time of modification, which ``beat`` renews: a waiter tells an
    owner that works from one that hangs. The file stays when the lock is free; it means nothing then.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is locked yet."""
        self.path = path
        self._handle: int | None = None

    def acquire(self, patience: float, waiting: Callable[[str], None]) -> None:
        """Take the lock, waiting while another process has it and shows signs of life.

        Args:
            patience: seconds to wait for a sign of life; 0 does not wait at all.
            waiting: is told once in a line that, and for whom, this waits.

        Raises:
            UserError: the owner shows no sign of life for ``patience`` seconds, or the file cannot be made.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"cannot make the lock {self.path}: {error.strerror}.") from error
        with contextlib.ExitStack() as failing:
            failing.callback(os.close, handle)
            self._wait(handle, patience, waiting)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            failing.pop_all()
        self._handle = handle

    def _wait(self, handle: int, patience: float, waiting: Callable[[str], None]) -> None:
        begin, reported = time.time(), False
        while not try_lock(handle):
            owner = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            # An owner that is about to beat for the first time may have found an old file: count from now.
            silence = time.time() - max(begin, os.fstat(handle).st_mtime)
            if silence >= patience:
                seconds = f" and has shown no sign of life for {silence:.0f} s" if patience else ""
                raise UserError(
                    f"{self.path} is held by {owner}{seconds}: wait for it to end, or end it, and run again."
                )
            if not reported:
                waiting(f"waiting for {owner}, which holds {self.path}")
                reported = True
            time.sleep(_POLL_SECONDS)

    def beat(self) -> None:
        """Show a sign of life."""
        if self._handle is not None:
            os.utime(self._handle)

    def release(self) -> None:
        """Free the lock; does nothing where it is not held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
