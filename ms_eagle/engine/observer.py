"""Who follows an engine through its requests: the interface between the host loop and reference mode."""

from collections.abc import Sequence
from typing import Protocol

from ms_eagle.engine.requests import Completion, Request


class Observer(Protocol):
    """Hears what an engine does; whatever it raises ends the engine's call."""

    def warm_up(self, sampled: bool) -> None:
        """Compile what this observer will run, for answers that are sampled or greedy."""

    def admitted(self, slot: int, request: Request) -> None:
        """A slot has been given to a request."""

    def read(self, slot: int, reused: int, seconds: float) -> None:
        """A slot's prompt is in the caches; ``reused`` tokens of it had been there before."""

    def finished(self, slot: int, sequence: Sequence[int], n: int, completion: Completion) -> None:
        """An answer is complete.

        Args:
            slot: where it was made.
            sequence: prompt and emitted tokens.
            n: how many of them are committed.
            completion: of the request.
        """

    def settle(self) -> None:
        """Slots whose answers are finished may be given away from now on."""

    def fail(self, error: Exception) -> None:
        """``error`` ends all that was begun."""
