"""Progress bars on standard error, and silence where nobody watches."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.table import Column
from rich.text import Text

from ms_eagle.errors import printable

_SPEED_SECONDS = 600.0  # rich's 30 forget the last job before a slow one ends, and with it the time left


class _Figures(ProgressColumn):
    """The count of a task in its own unit: ``12.3 MB/92.9 MB`` for bytes, ``3/30`` for steps."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: RichTask) -> Text:
        form: Callable[[int], str] = decimal if task.fields["unit"] == "bytes" else str
        done = form(int(task.completed))
        return Text(done if task.total is None else f"{done}/{form(int(task.total))}")


class _Left(ProgressColumn):
    """The time that a task will still take at its present speed; nothing while that is unknown."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: RichTask) -> Text:
        left = task.time_remaining
        if task.total is None or left is None or task.finished:
            return Text("")
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")


class Step:
    """One running job; ``advance`` adds to its count, ``reach`` sets it, ``describe`` says what it is at.

    Counts are plain integers in the unit the job was opened with. A silent `Progress` ignores all of it.
    """

    def __init__(self, bars: RichProgress | None, identity: TaskID) -> None:
        self._bars = bars
        self._identity = identity

    def advance(self, amount: int = 1) -> None:
        """Add ``amount`` to the count."""
        if self._bars is not None:
            self._bars.advance(self._identity, amount)

    def reach(self, amount: int) -> None:
        """Set the count to ``amount``."""
        if self._bars is not None:
            self._bars.update(self._identity, completed=amount)

    def describe(self, text: str) -> None:
        """Replace the text before the bar."""
        if self._bars is not None:
            self._bars.update(self._identity, description=text)


class Progress:
    """Shows jobs as bars on standard error, one line each, and clears them when they end.

    Nothing is written when ``quiet`` is set or standard error is not a terminal, so pipes, logs and
    ``--json`` runs stay clean. A total of None shows a pulsing bar with the elapsed time.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        # rich alone would take FORCE_COLOR, which CI services set, for a terminal.
        default = Console(stderr=True, force_terminal=sys.stderr.isatty())
        self._console = console if console is not None else default
        self._quiet = quiet
        self.visible = not quiet and self._console.is_terminal
        self._bars: RichProgress | None = None

    def note(self, text: str) -> None:
        """Say one line on standard error, terminal or not, unless quiet."""
        if not self._quiet:
            self._console.print(f"note: {printable(text)}", markup=False, highlight=False, soft_wrap=True)

    def bytes(self, description: str, total: int | None = None) -> contextlib.AbstractContextManager[Step]:
        """Open a job counted in bytes; the context yields its `Step`."""
        return self._open(description, total, "bytes")

    def steps(self, description: str, total: int | None = None) -> contextlib.AbstractContextManager[Step]:
        """Open a job counted in steps; the context yields its `Step`."""
        return self._open(description, total, "steps")

    @contextlib.contextmanager
    def _open(self, description: str, total: int | None, unit: str) -> Iterator[Step]:
        if not self.visible:
            yield Step(None, TaskID(0))
            return
        # One console carries one live display: jobs opened inside a job share it.
        outermost = self._bars is None
        if self._bars is None:
            self._bars = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
                BarColumn(20),
                _Figures(),
                TimeElapsedColumn(),
                _Left(),
                console=self._console,
                transient=True,
                speed_estimate_period=_SPEED_SECONDS,
            )
            self._bars.start()
        bars = self._bars
        identity = bars.add_task(description, total=total, unit=unit)
        try:
            yield Step(bars, identity)
        finally:
            bars.refresh()  # a job shorter than one frame shows its last count too
            bars.remove_task(identity)
            if outermost:
                bars.stop()
                self._bars = None


def duration(seconds: float) -> str:
    """``3 h 05 min``, ``12 min`` or ``40 s``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
