"""What every command line here shares: its parser, its exit statuses and its first steps."""

import argparse
import difflib
import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

from ms_eagle import __version__
from ms_eagle.drafters.registry import KINDS
from ms_eagle.errors import UserError, printable
from ms_eagle.paths import CONFIGS
from ms_eagle.system import interrupts, quiet
from ms_eagle.system import streams as standard_streams
from ms_eagle.system.streams import OutputError

EXIT_STATUSES = """\
exit status:
  0    done
  1    an unexpected error (a traceback follows), standard output that cannot be written (one line says
       why), or a reader of it that closed it early, as `head` does
  2    bad input or configuration, or too little memory (one line says what to change)
  130  interrupted with Ctrl-C
"""

_NO_MEMORY = "error: out of memory: close other programs, raise ulimit -v, or choose a smaller model or cache"
# How MindSpore, numpy, the loader and threads say it, each with an exception of another kind.
_MEMORY_SIGNS = (
    *("std::bad_alloc", "Allocate memory failed", "malloc memory failed", "Cannot allocate memory"),
    *("failed to map segment", "can't start new thread", "Resource temporarily unavailable"),
)

DRAFTERS = tuple(KINDS)  # the values of drafter.kind

DEFAULT_CONFIG, TRAINING_CONFIG = CONFIGS / "smollm2_135m.yaml", CONFIGS / "train" / "smollm2_135m.yaml"


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors are one line, and whose help keeps its line breaks.

    Raises:
        UserError: from ``parse_args``, for arguments that do not fit.
    """

    def __init__(self, usage: str, description: str, epilog: str) -> None:
        """``usage`` follows the program's name; the exit statuses are added to ``epilog``."""
        super().__init__(
            usage=f"%(prog)s {usage}",
            description=description,
            epilog=f"{epilog.rstrip()}\n\n{EXIT_STATUSES}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=28, width=min(100, shutil.get_terminal_size().columns)
            ),
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the usage error instead of printing the usage and exiting."""
        raise UserError(f"{message}; see {self.prog} --help")

    def add_config_options(
        self,
        default: Path = DEFAULT_CONFIG,
        example: str = "generation.temperature=0.7",
        page: str = "docs/config.md",
    ) -> None:
        """Add ``--config`` and ``--set`` as the group "configuration".

        Args:
            default: the file that is read where none is named.
            example: a value to set; ``page``: where the keys are described.
        """
        group = self.add_argument_group("configuration")
        group.add_argument(
            "--config",
            metavar="YAML",
            type=Path,
            default=default,
            help=f"what to load and how to run it (default: {default.relative_to(CONFIGS.parent)})",
        )
        group.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            dest="overrides",
            help=f"replace one value of the configuration, for example {example};"
            f" may be repeated; every key is described in {page}",
        )

    def add_trust_option(self, group: argparse._ArgumentGroup) -> None:
        """Add ``--trust``, for bundles; see ``deployment.bundle.Bundle.open``."""
        group.add_argument(
            "--trust",
            metavar="HASH",
            nargs="?",
            const=True,
            default=False,
            help="run a bundle whose kernel sources are not this version's own: code of whoever made it;"
            " with a hash, as tools/inspect_bundle.py prints it, these sources only",
        )

    def add_common_options(self) -> None:
        """Add ``--verbose``, ``--version`` and ``--help`` as the group "other"."""
        group = self.add_argument_group("other")
        group.add_argument(
            "--verbose",
            action="store_true",
            help="show what MindSpore and the libraries below it print",
        )
        group.add_argument(
            "--version", action="version", version=f"ms_eagle {__version__}", help="show the version"
        )
        group.add_argument("-h", "--help", action="help", help="show this page")


def drafter_overrides(drafter: str | None) -> list[str]:
    """What ``--drafter`` stands for, as further ``--set`` options."""
    if drafter is None:
        return []
    if drafter in DRAFTERS:
        return [f"drafter.kind={drafter}"]
    if not drafter.strip():
        raise UserError(f"--drafter is empty; expected {', '.join(DRAFTERS)} or the directory of a head")
    near = difflib.get_close_matches(drafter, DRAFTERS, 1)
    if near and not Path(drafter).exists():
        raise UserError(
            f"--drafter {drafter}: there is no such kind and no such directory; did you mean {near[0]}?"
        )
    return ["drafter.kind=eagle3", f"drafter.source={json.dumps(drafter)}"]


def count(text: str) -> int:
    """The number that an option gives, at least 1; for ``type=`` of an argument."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """The number that an option gives, at least 0; for ``type=`` of an argument."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} found; expected a whole number of at least {least}")
    return number


def begin(verbose: bool) -> None:
    """Make the process quiet, unless ``verbose``, and keep Ctrl-C; call it before numpy and mindspore.

    Nothing that native code prints reaches the terminal afterwards. An unexpected exception still shows its
    traceback, followed by the end of what was hidden.
    """
    interrupts.start()
    quiet.start(verbose)
    if not verbose:
        sys.excepthook = quiet.HiddenOutput().report
    faulthandler.enable(sys.stderr)


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines on ``file``, None: standard output; control characters of what files hold as escapes."""
    for line in lines:
        print(printable(line, len(line)), file=file)


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Call ``main`` with the arguments of this process and exit with the status it returns.

    A `UserError` and a lack of memory become one line on standard error and status 2, Ctrl-C status 130,
    output that cannot be written one line and status 1; a reader that closes our output early ends the run
    without a word. Other exceptions are left to Python: a traceback and status 1.

    Call it before anything that takes long is imported, for ``main`` to import it under these rules.
    """
    try:
        standard_streams.prepare()
        status = _status(main)
    except KeyboardInterrupt:
        _end_at_once(130, "interrupted")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except BrokenPipeError:
        standard_streams.drop(sys.stdout)
        status = 1
    except OutputError as error:
        standard_streams.drop(sys.stdout)
        print(f"error: cannot write the answer: {error}", file=sys.stderr)
        status = 1
    except Exception as error:
        if not _is_of_memory(error):
            raise
        _end_at_once(2, _NO_MEMORY)
    sys.exit(status)


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether memory was lacking, in Python or in a library underneath, for this error or for its causes."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if any(sign in str(error) for sign in _MEMORY_SIGNS) and not isinstance(error, BlockingIOError):
            return True
        if "Unknown Error!" in str(error) and _address_space_is_full():  # MindSpore lost the reason
            return True
        error = error.__cause__ or error.__context__
    return False


def _address_space_is_full() -> bool:
    """Whether this process has taken nearly all that ``ulimit -v`` lets it have."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # no Linux
        return False
    return limit != resource.RLIM_INFINITY and limit - pages * resource.getpagesize() < limit // 16


def _status(main: Callable[[list[str]], int]) -> int | str:
    """The status of ``main``, of ``--help`` and ``--version`` too, when all output has been written."""
    try:
        status: int | str = main(sys.argv[1:])
    except SystemExit as done:
        status = done.code or 0
    sys.stdout.flush()
    return status


def _end_at_once(status: int, line: str) -> NoReturn:
    """Exit without exit hooks: those of a MindSpore that is half imported, or lacks memory, abort."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
    try:
        print(line, file=sys.stderr, flush=True)
        sys.stdout.flush()
    finally:
        os._exit(status)
