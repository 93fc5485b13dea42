"""Who follows an engine through its requests: the interface between the host loop and reference mode."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ms_eagle.engine.requests import Completion, GenerationOptions


class TurnName(NamedTuple):
    """Which answer of a run is meant.

    Attributes:
        prompt: names the dialog, such as ``prompts.jsonl:3``.
        turn: counts its answers from 1.
    """

    prompt: str
    turn: int


class Observer(Protocol):
    """Hears what an engine does; whatever it raises ends the engine's call."""

    def announce(self, names: Sequence[TurnName] | None) -> None:
        """Names of the prompts that follow, in order; None where they have none."""

    def begin(self, prompts: Sequence[Sequence[int]], options: Sequence[GenerationOptions]) -> None:
        """A group of up to B prompts is about to be read."""

    def read(self, reused: np.ndarray, seconds: float) -> None:
        """The prompts are in the caches; ``reused`` ``[B]`` tokens of each had been there before."""

    def end(
        self, sequences: Sequence[Sequence[int]], n: np.ndarray, completions: Sequence[Completion]
    ) -> None:
        """All answers of the group are finished.

        Args:
            sequences: prompt and emitted tokens of all B sequences, the idle ones included.
            n: ``[B]``, how many tokens of each are committed.
            completions: of the prompts.
        """

    def fail(self, error: Exception) -> None:
        """``error`` ends what was begun."""
