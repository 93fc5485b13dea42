"""Files that appear whole or not at all, what may be written, and hashes."""

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ms_eagle.errors import UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed over ``path``.

    On any exception the temporary file is removed and ``path`` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)  # mkstemp makes 0600; a finished file gets the permissions open() would give
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically (temporary file, fsync, rename)."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically."""
    write_bytes(path, text.encode())


def make_parent(path: Path, name: str) -> None:
    """Make the directory of a file to write, unless it is there.

    Raises:
        UserError: it cannot be made; ``name`` is the option that named the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{name}: cannot make the directory of {path}: {reason}") from error


def check_output(path: Path, name: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a file to write before any work is done for it; nothing is created.

    Args:
        path: the file; one that exists may be replaced.
        name: the option that named it, for the message.
        inputs: files that are read and must outlive the run; those that do not exist are passed over.

    Raises:
        UserError: ``path`` is one of ``inputs``, under whatever name, is a directory, lies in no directory,
            or may not be written.
    """
    if "\0" in str(path):
        raise UserError(f"{name}: cannot write {str(path)!r}: no name holds a NUL")
    try:
        for each in inputs:
            if path.exists() and each.exists() and path.samefile(each):
                raise UserError(f"{name}: {path} is read by this run ({each}); name another file to write")
        if path.is_dir():
            raise UserError(f"{name}: cannot write {path}: it is a directory; expected a file")
        if not path.parent.is_dir():
            raise UserError(
                f"{name}: cannot write {path}: there is no directory {path.parent}; make it first"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UserError(f"{name}: cannot write {path}: Permission denied")
    except OSError as error:  # a name beyond all limits, a directory closed to us
        raise UserError(f"{name}: cannot write {path}: {error.strerror}") from error


def text_of(data: bytes) -> str:
    """UTF-8 text without what editors of Windows add: a byte order mark, and carriage returns at line ends.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return data.decode("utf-8-sig").replace("\r\n", "\n")


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading whose content is in it: opening a pipe or a device would wait, or never end.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return open(descriptor, "rb")


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
