"""Standard input, output and error that are there whatever the shell did with them."""

import errno
import io
import os
import sys
from typing import BinaryIO, TextIO


class OutputError(Exception):
    """Standard output took no more; the message is the system's reason, such as a full disk."""


class Output(io.TextIOWrapper):
    """Standard output: a write that fails says that it was this one.

    A reader that went away is left to Python's BrokenPipeError.

    Raises:
        OutputError: from ``write`` and ``flush``.
    """

    def write(self, text: str) -> int:
        """See ``io.TextIOBase.write``."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.strerror) from error

    def flush(self) -> None:
        """See ``io.IOBase.flush``."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.strerror) from error


class Closed(Output):
    """Standard output that the shell has closed: nobody would see what is written there."""

    def write(self, text: str) -> int:
        """See ``io.TextIOBase.write``.

        Raises:
            OutputError: always.
        """
        raise OutputError("standard output is closed")


class Messages(Output):
    """Standard error: after a write that fails there is nobody to tell, so it and the rest are dropped."""

    def write(self, text: str) -> int:
        """See ``io.TextIOBase.write``."""
        try:
            return super().write(text)
        except OutputError:
            drop(self)
            return len(text)

    def flush(self) -> None:
        """See ``io.IOBase.flush``."""
        try:
            super().flush()
        except OutputError:
            drop(self)


def drop(stream: TextIO) -> None:
    """Send what ``stream`` still holds, and all that follows, nowhere: Python flushes it while it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def prepare() -> None:
    """Open what is closed (``>&-``) on the null device, and put `Output` and `Messages` in place.

    A library that finds descriptor 1 or 2 free would open a file there, and be written over.
    """
    kind = Output
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            kind = Closed if descriptor == 1 else kind
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (for the process's life)
    sys.stdout = text(kind, sys.stdout, 1)
    sys.stderr = text(Messages, sys.stderr, 2)


def text(kind: type[Output], stream: TextIO | None, descriptor: int) -> Output:
    """A stream of ``kind`` on ``descriptor`` that writes as ``stream`` does, whole lines at once."""
    raw: BinaryIO = open(descriptor, "wb", closefd=False)  # noqa: SIM115 (for the process's life)
    if stream is None:
        return kind(raw, encoding="utf-8", errors="replace", line_buffering=True)
    stream.flush()
    return kind(raw, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
