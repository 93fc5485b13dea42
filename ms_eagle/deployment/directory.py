"""The directory of a bundle that is being written: it appears whole or not at all."""

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ms_eagle.deployment.manifest import FILE
from ms_eagle.errors import UserError


def check_free(out: Path) -> None:
    """Refuse a directory that exists and is not empty, or that cannot be made.

    Raises:
        UserError: saying what is there.
    """
    try:
        if out.is_symlink() or os.path.ismount(out):
            raise UserError(
                f"--out: {out} is a link or a mount, which a new directory cannot replace: name one inside it"
            )
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            what = "a bundle" if (out / FILE).is_file() else "something"
            raise UserError(f"--out: {out} holds {what} already: name another directory, or remove it")
    except OSError as error:  # a name beyond all limits, a directory closed to us
        raise UserError(f"--out: cannot write {out}: {error.strerror}; name another directory") from error
    parent = out.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"--out: cannot write {out}: {parent} is no directory that may be written")


@contextlib.contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that becomes it at the end, and is gone after a failure.

    What killed exports of this host left beside ``out`` is removed first.

    Raises:
        UserError: it cannot be written, the disk is full.
    """
    try:
        temporary, lock = _make(out)
        try:
            yield temporary
            temporary.chmod(0o755)
            if out.exists():
                out.rmdir()
            temporary.rename(out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise UserError(
            f"--out: cannot write {out}: {error.strerror or error}; make room, or name another directory"
        ) from error


def _make(out: Path) -> tuple[Path, int]:
    """A new temporary directory and its lock, which the system releases when its holder dies."""
    parent, prefix = out.absolute().parent, f".{out.name}.{platform.node()}."
    making = os.open(parent, os.O_RDONLY)
    try:
        _lock(making, wait=True)  # nobody sees a directory that its maker has not locked yet
        for path in parent.iterdir():
            if path.name.startswith(prefix) and path.name.endswith(".tmp"):
                _remove_dead(path)
        temporary = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=parent))
        lock = os.open(temporary, os.O_RDONLY)
        _lock(lock)
    finally:
        os.close(making)
    return temporary, lock


def _remove_dead(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # gone meanwhile, or not ours to remove
    try:
        if _lock(lock):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(descriptor: int, *, wait: bool = False) -> bool:
    """Whether the lock could be had; a file system without locks has none to give."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
