"""``output_logits`` and ``output_scores``: what the teacher said at every step of finished answers.

A cycle leaves its logits on the device. They are made again, by reading each answer once: on a CPU bit for
bit the same, for a row does not depend on the rows around it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from mindformers import GenerationConfig, LogitsProcessorList

from ms_eagle.engine.engine import Engine
from ms_eagle.models.reading import Logits, Reader


class StepLogits:
    """Reads finished sequences through the engine's own caches."""

    def __init__(self, engine: Engine) -> None:
        facts, teacher = engine.graphs.facts, engine.graphs.teacher
        self._vocabulary, self._engine = facts.vocab_size, engine
        self._reader = Reader(teacher, Logits(teacher), facts.sizes.chunk)

    def read(self, sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[np.ndarray]:
        """Logits of each step.

        Args:
            sequences: prompts with their answers.
            lengths: of the prompts.

        Returns:
            for each step, float32 ``[B, V]``; zeros for a row that had ended before.
        """
        steps = max(len(s) - n for s, n in zip(sequences, lengths, strict=True))
        logits = np.zeros((steps, len(sequences), self._vocabulary), np.float32)
        self._engine.forget()
        unended = [(row, sequence[:-1]) for row, sequence in enumerate(sequences) if len(sequence) > 1]
        for piece in self._reader.pieces(unended):
            first = piece.start - (lengths[piece.number] - 1)  # the row of a prompt's last token is step 0
            for step, values in enumerate(piece.values[0], first):
                if step >= 0:
                    logits[step, piece.number] = values
        return list(logits)


def on_numpy(processors: LogitsProcessorList) -> LogitsProcessorList:
    """The same processors, computing with numpy: a CPU lacks operators that they would use."""
    for each in (processors, *processors):
        each.use_numpy = True
    return processors


def scores(
    logits: Sequence[np.ndarray],
    sequences: Sequence[Sequence[int]],
    lengths: Sequence[int],
    config: GenerationConfig,
    capacity: int,
    process: Sequence[Callable[[np.ndarray, np.ndarray], np.ndarray]],
) -> tuple[np.ndarray, ...]:
    """Logits after MindFormers' own processors.

    Args:
        logits: of each step, ``[B, V]``.
        sequences, lengths: as for ``StepLogits.read``.
        config: for its padding token.
        capacity: the length that MindFormers pads to.
        process: of each row: ids ``[1, capacity]`` and logits ``[1, V]`` to scores ``[1, V]``.
    """
    told = []
    for step, given in enumerate(logits):
        processed = given.copy()
        for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
            if length + step < len(sequence):
                ids = np.full((1, capacity), config.pad_token_id, np.int64)
                ids[0, : length + step] = sequence[: length + step]
                processed[row] = process[row](ids, given[row : row + 1].copy())[0]
        told.append(processed)
    return tuple(told)
