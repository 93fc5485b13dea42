"""``output_logits`` and ``output_scores``: what the teacher said at every step of finished answers.

A cycle leaves its logits on the device. They are made again, by reading each answer once: on a CPU bit for
bit the same, for a row does not depend on the rows around it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from mindformers import GenerationConfig, LogitsProcessorList
from mindspore import Tensor

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.windows import windows
from ms_eagle.models.reading import RowLogits


class StepLogits:
    """Reads finished sequences through the engine's own caches."""

    def __init__(self, engine: Engine) -> None:
        self._graphs, self._cell = engine.graphs, RowLogits(engine.graphs.teacher)

    def read(self, sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[np.ndarray]:
        """Logits of each step.

        Args:
            sequences: prompts with their answers.
            lengths: of the prompts.

        Returns:
            for each step, float32 ``[B, V]``; zeros for a row that had ended before.
        """
        steps = max(len(s) - n for s, n in zip(sequences, lengths, strict=True))
        found = np.zeros((steps, len(sequences), self._graphs.vocab_size), np.float32)
        batch = self._graphs.batch
        for first in range(0, len(sequences), batch):
            group = list(sequences[first : first + batch])
            idle = batch - len(group)
            self._read_group([*group, *([0] for _ in range(idle))], lengths[first:], found[:, first:])
        return list(found)

    def _read_group(self, group: list[Sequence[int]], lengths: Sequence[int], found: np.ndarray) -> None:
        end = np.array([len(sequence) - 1 for sequence in group], np.int32)
        for window, start, count in windows(group, np.zeros_like(end), end, self._graphs.chunk):
            rows = window.shape[1] - 1
            tokens = np.ascontiguousarray(window[:, :rows])
            logits = self._cell(Tensor(tokens), Tensor(start), Tensor(count)).asnumpy()
            for row, length in enumerate(lengths[: len(group)]):
                for i in range(count[row]):
                    step = int(start[row]) + i - (length - 1)  # the row of a prompt's last token is step 0
                    if step >= 0:
                        found[step, row] = logits[row, i]


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
