"""Keeps MindSpore, MindFormers and their drivers from talking on the terminal and littering the directory.

Both libraries decide how much to say, and where to leave files, from environment variables read while they
are imported: call `start` before anything imports them.
"""

import logging
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from types import TracebackType
from typing import TextIO

from ms_eagle.system import home, private
from ms_eagle.system import streams as standard_streams
from ms_eagle.system.streams import Closed, Messages, Output

_TAIL = 4000  # characters of hidden output shown after an unexpected error
_ERRORS_ONLY = "3"  # GLOG_v: 0 debug, 1 info, 2 warning, 3 error, 4 critical

# Each names a directory that a library would otherwise put into the current one. A value the user has set
# already is kept: it says where the files are wanted.
_PLACES = {
    "MS_OM_PATH": "mindspore",  # rank_0/om/analyze_fail.ir, written when a graph does not compile
    "MS_DIAGNOSTIC_DATA_PATH": "mindspore",
    "MS_COMPILER_CACHE_PATH": "mindspore",  # rank_0/, kernel_meta/, akg_kernel_meta/, somas_meta/
    "ASCEND_WORK_PATH": "ascend",  # kernel_meta/, fusion_result.json, atrace/
    "ASCEND_CACHE_PATH": "ascend",  # compiled operators
    "LOCAL_DEFAULT_PATH": "mindformers",  # output/log/rank_0/*.log, opened when mindformers is imported
    "OM_MODULES_CACHE": "mindformers/modules",  # copies of what a YAML file registers from REGISTER_PATH
}


def start(verbose: bool) -> None:
    """Send the libraries' files to the user's cache and, unless ``verbose``, silence their messages.

    Changes this process's environment, warning filters and logging threshold, all of which its children
    inherit or keep. Safe to call more than once. With ``verbose`` only the files are redirected.
    """
    place = writable_cache()
    for variable, name in _PLACES.items():
        if not os.environ.get(variable):
            directory = place / name
            directory.mkdir(parents=True, exist_ok=True)
            os.environ[variable] = str(directory)
    if verbose:
        return
    os.environ["GLOG_v"] = _ERRORS_ONLY  # noqa: SIM112 (the library's own spelling)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else a warning follows every fork
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")


def writable_cache() -> Path:
    """The per-user cache directory of this package, or a temporary one where that cannot be written."""
    place = home.cache()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK | os.X_OK):
            return place
    except OSError:  # a home that does not exist, or is mounted read-only
        pass
    return private.temporary()  # modules in it are run: nobody else may have made it


class HiddenOutput:
    """What native code writes to file descriptors 1 and 2, kept off the terminal in an unnamed file.

    Python's ``sys.stdout`` and ``sys.stderr`` keep going where they went: they move to duplicates of the old
    descriptors. Standard output stays as it is on a terminal, where line editing of `input` needs
    descriptor 1; on a pipe it is hidden too, so that no stray line of a driver lands between JSON records.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        if not os.isatty(1):
            kind = Closed if isinstance(sys.stdout, Closed) else Output
            sys.stdout = self._move(kind, sys.stdout, 1)
        sys.stderr = self._move(Messages, sys.stderr, 2)

    def _move(self, kind: type[Output], stream: TextIO, descriptor: int) -> Output:
        moved = standard_streams.text(kind, stream, os.dup(descriptor))
        os.dup2(self._file.fileno(), descriptor)
        return moved

    def tail(self) -> str:
        """The last few thousand characters hidden so far."""
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), _TAIL, max(0, size - _TAIL))
        return data.decode(errors="replace").strip()

    def report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception hook: the traceback, then what the libraries had to say before it."""
        traceback.print_exception(kind, error, trace, file=sys.stderr)
        lines = self.tail()
        if lines:
            print(
                f"\nWritten by the libraries underneath (--verbose shows all of it):\n{lines}",
                file=sys.stderr,
            )
