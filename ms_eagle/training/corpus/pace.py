"""How fast work goes and how long it will take: a bar for who watches, a line now and then for a log."""

import time
from types import TracebackType

from ms_eagle.system.progress import Progress, duration

_LINE_SECONDS = 60.0


class Pace:
    """A context around one stage of work: jobs, and tokens that they take."""

    def __init__(self, progress: Progress, what: str, jobs: int, at_once: int = 1) -> None:
        """Name the stage, how many jobs it has, and how many of them are under way at a time."""
        self._progress, self._what, self._jobs, self._at_once = progress, what, jobs, at_once
        self._done = self._tokens = 0

    def __enter__(self) -> "Pace":
        """Start the clock."""
        self._open = self._progress.steps(self._what, self._jobs)
        self._step = self._open.__enter__()
        self._begin = self._told = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar; a stage that had work is summed up in one line."""
        self._open.__exit__(kind, error, trace)
        if self._done:
            self._progress.note(self._line(time.perf_counter()))

    def finished(self, tokens: int, jobs: int = 1) -> None:
        """Count finished jobs and the tokens that were written for them."""
        self._done += jobs
        self._tokens += tokens
        self._step.advance(jobs)
        now = time.perf_counter()
        if self._progress.visible:
            self._step.describe(f"{self._what}, {self._rate(now):.0f} tokens/s")
        elif now - self._told >= _LINE_SECONDS:
            self._told = now
            self._progress.note(self._line(now))

    def _rate(self, now: float) -> float:
        return self._tokens / max(now - self._begin, 1e-9)

    def _line(self, now: float) -> str:
        line = f"{self._what}: {self._done} of {self._jobs}"
        if self._done >= min(
            self._at_once, self._jobs
        ):  # before, most of what was written is not counted yet
            line += f", {self._rate(now):.0f} tokens/s"
        if 0 < self._done < self._jobs:
            under_way = min(self._at_once, self._jobs - self._done)
            done = self._done + (under_way - 1) / 2  # they are halfway, on average
            line += f", about {duration((now - self._begin) / done * (self._jobs - done))} left"
        return line
