"""What the start of a process took until its first token, part by part."""

import os
import sys
import time
from pathlib import Path

from ms_eagle.chat.report import Asked, Report
from ms_eagle.engine.requests import Completion

_STAT, _UPTIME = Path("/proc/self/stat"), Path("/proc/uptime")
_LOADED = time.perf_counter()


def since_start() -> float:
    """Seconds since this process began; since this module was loaded where the system does not tell."""
    try:
        # proc(5): field 22 is the start in clock ticks since boot; field 2 may hold spaces.
        fields = _STAT.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        begin = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return float(_UPTIME.read_text(encoding="ascii").split()[0]) - begin
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - _LOADED


def line(imports: float, completion: Completion) -> str:
    """One line: Python and imports, loading, compiling, and from there to the first token; seconds.

    Args:
        imports: from the process' begin to the begin of loading.
        completion: the first answer of the process.
    """
    seconds, first = completion.seconds, completion.time_to_first_token
    parts = {
        "imports": imports,
        "load": seconds.load,
        "compile": seconds.compile,
        "first token": first or 0.0,
    }
    told = [f"{name} {value:.2f} s" for name, value in parts.items()]
    return f"[start | {' | '.join(told)} | together {sum(parts.values()):.2f} s]"


class StartReport:
    """A report that also tells, after the first answer, what the start took."""

    def __init__(self, report: Report, imports: float) -> None:
        """``imports``: see ``line``."""
        self._report, self._imports, self._told = report, imports, False

    def begin(self, title: str | None, prompt: str, asked: Asked) -> None:
        """See ``report.Report``."""
        self._report.begin(title, prompt, asked)

    def text(self, piece: str) -> None:
        """See ``report.Report``."""
        self._report.text(piece)

    def end(self, completion: Completion) -> None:
        """See ``report.Report``; the line goes to standard error."""
        self._report.end(completion)
        if not self._told:
            self._told = True
            print(line(self._imports, completion), file=sys.stderr, flush=True)
