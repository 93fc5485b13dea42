"""The directory of a bundle that is being written: it appears whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ms_eagle.deployment.manifest import FILE
from ms_eagle.errors import UserError
from ms_eagle.system import directories


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
    """A directory beside ``out`` that becomes it at the end; see ``directories.appearing``.

    Raises:
        UserError: it cannot be written, the disk is full, another process is making it.
    """
    try:
        with directories.appearing(out, alone=True) as new:
            yield new
    except OSError as error:
        raise UserError(
            f"--out: cannot write {out}: {error.strerror or error}; make room, or name another directory"
        ) from error
