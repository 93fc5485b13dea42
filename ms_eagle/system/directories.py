"""Directories that appear whole or not at all, whatever fails, is killed or runs beside."""

import contextlib
import errno
import glob
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ms_eagle.system.locks import try_lock

_MARK = ".ms_eagle"  # in every workspace: what has it, we made


@contextlib.contextmanager
def appearing(
    final: Path, *, within: Path | None = None, replace: bool = False, alone: bool = False
) -> Iterator[Path]:
    """A new directory that becomes ``final`` at the end, and is gone after a failure.

    The directory that it lies in meanwhile goes with it, and with whatever else was put there. What killed
    processes of this host left of theirs in the same place is removed first: directories named by us,
    with our mark in them or empty, that nobody holds.

    Args:
        final: if it is there already, it must be empty, or the end fails and leaves it as it is.
        within: where to work, on the same file system; None is beside ``final``.
        replace: let ``final`` take the place of whatever is there.
        alone: refuse at once where another process of this host is making ``final``.

    Raises:
        FileExistsError: ``alone``, and another process is at it.
        OSError: it cannot be written.
    """
    prefix = f".{final.name}{_suffix()}."
    workspace, lock = _make_workspace(within or final.absolute().parent, prefix, alone)
    try:
        new = workspace / "new"
        new.mkdir()
        yield new
        if final.exists():
            final.rename(workspace / "old") if replace else final.rmdir()
        new.rename(final)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        os.close(lock)


def _suffix() -> str:
    """What the names of this host's workspaces have in them."""
    return f".{platform.node()}"


def _make_workspace(parent: Path, prefix: str, alone: bool) -> tuple[Path, int]:
    """A new temporary directory, and the open descriptor that holds its lock."""
    making = os.open(parent, os.O_RDONLY)
    try:
        _lock(making, wait=True)  # nobody sees a directory that its maker has not locked yet
        for path in parent.glob(f".*{glob.escape(_suffix())}.*.tmp"):
            _remove_dead(path)
        others = [path for path in parent.glob(f"{glob.escape(prefix)}*.tmp") if (path / _MARK).is_file()]
        if alone and others:
            raise FileExistsError(errno.EEXIST, f"another process is making it in {others[0]}")
        workspace = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=parent))
        lock = os.open(workspace, os.O_RDONLY)
        _lock(lock)
        (workspace / _MARK).touch()
    finally:
        os.close(making)
    return workspace, lock


def _remove_dead(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # gone meanwhile, or not ours to remove
    try:
        if _lock(lock) and ((path / _MARK).is_file() or not any(path.iterdir())):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(descriptor: int, *, wait: bool = False) -> bool:
    """Whether the lock could be had; a file system without locks has none to give."""
    try:
        return try_lock(descriptor, wait=wait)
    except OSError:
        return False
