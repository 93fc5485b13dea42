"""Places that nobody but this user can have written to, as ssh asks it of its keys.

What lies in them is loaded as code, or trusted as if we had just made it.
"""

import atexit
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Exposed(Exception):
    """Somebody else may have put it there; the text is one line that says what was found, and what to do."""


def check(path: Path) -> None:
    """Refuse a file or directory that another user can have written.

    Raises:
        Exposed: it is a symbolic link, another user than root owns it, or others may write to it.
        OSError: it is not there, or closed to us.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise Exposed(f"{path} is a symbolic link, expected the place itself: name where it points instead")
    if status.st_uid not in (os.geteuid(), 0):
        raise Exposed(
            f"{path} belongs to user {status.st_uid}, expected user {os.geteuid()}, who runs this: take "
            "another place, or change its owner"
        )
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise Exposed(f"others can write to {path} (mode {mode:04o}): remove it, or trust it with chmod go-w")


def check_tree(directory: Path) -> None:
    """``check`` a directory and everything below it.

    Raises:
        Exposed, OSError: see ``check``.
    """
    check(directory)
    for path in directory.rglob("*"):  # follows no links to directories
        check(path)


def close(directory: Path) -> None:
    """Take away from everybody else what a generous umask has let them write in what this process made."""
    for path in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not path.is_symlink() and mode & _OTHERS_WRITE:
            path.chmod(mode & ~_OTHERS_WRITE)


def make(directory: Path) -> Path:
    """The directory, made with its parents where it is missing, for this user alone, and checked.

    Raises:
        Exposed: it has been there, and is not this user's alone.
        OSError: it cannot be made.
    """
    for place in reversed((directory, *directory.parents)):
        if not os.path.lexists(place):
            place.mkdir(mode=0o700, exist_ok=True)
    check(directory)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    return directory


def temporary() -> Path:
    """A directory of this user's for as long as the machine runs; of this process alone where it is taken."""
    shared = Path(tempfile.gettempdir()) / f"ms_eagle-{os.geteuid()}"
    try:
        return make(shared)
    except (Exposed, OSError):
        own = Path(tempfile.mkdtemp(prefix="ms_eagle-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return own


def writable(preferred: Path, notice: Callable[[str], None]) -> Path:
    """``preferred`` if this user alone can write there, else a place of the same name in ``temporary``.

    Args:
        preferred: is made where it is missing.
        notice: is told in one line when it is there, but exposed.

    Raises:
        OSError: there is no such place.
    """
    try:
        if os.access(make(preferred), os.W_OK | os.X_OK):
            return preferred
    except Exposed as error:
        notice(f"{error}; a temporary directory is used instead")
    except OSError:  # a home that does not exist, or is mounted read-only
        pass
    return make(temporary() / preferred.name)
