"""A drafter of whose tokens none is accepted costs time and says nothing: a report that does."""

import sys

from ms_eagle.chat.report import Asked, Report
from ms_eagle.drafters.registry import is_head
from ms_eagle.engine.requests import Completion

_CYCLES = 50


class AcceptanceReport:
    """A report that also says, once, that nothing was accepted in the first cycles of all answers."""

    def __init__(self, report: Report) -> None:
        self._report, self._cycles, self._settled = report, 0, False

    def begin(self, title: str | None, prompt: str, asked: Asked) -> None:
        """See ``report.Report``."""
        self._report.begin(title, prompt, asked)

    def text(self, piece: str) -> None:
        """See ``report.Report``."""
        self._report.text(piece)

    def end(self, completion: Completion) -> None:
        """See ``report.Report``; the note goes to standard error."""
        self._report.end(completion)
        if self._settled or completion.accept_L is None or not is_head(completion.drafter):
            return
        self._cycles += len(completion.accept_L)
        if any(completion.accept_L):
            self._settled = True
        elif self._cycles >= _CYCLES:
            self._settled = True
            print(
                f"note: in {self._cycles} cycles no drafted token was accepted: the head may belong to "
                "another model, or be read otherwise than it was trained: tools/check_head.py says which",
                file=sys.stderr,
                flush=True,
            )
