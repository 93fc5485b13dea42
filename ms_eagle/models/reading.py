"""Reading given tokens with a teacher: in chunks of one fixed size, whatever their number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.models.teacher import Teacher


class Reading(nn.Cell):
    """Runs consecutive tokens, whose K and V it writes, and hands their states to ``finish``."""

    def __init__(self, teacher: Teacher, finish: nn.Cell) -> None:
        """``finish``: a Cell from normed hidden states ``[B, T, E]`` and taps to what is wanted."""
        super().__init__()
        self.teacher, self.finish = teacher, finish

    def construct(self, tokens: Tensor, start: Tensor, count: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run ``count`` tokens of each sequence.

        Args:
            tokens: ``[B, T]`` int32.
            start: ``[B]`` int32, the committed length before them.
            count: ``[B]`` int32 in ``0..T``; 0 leaves a sequence alone. Further rows are arbitrary.
        """
        return self.finish(*self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count)))


class Logits(nn.Cell):
    """What a `Reading` hands over as float32 logits ``[B, T, V]``."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(self, hidden: Tensor, taps: Tensor) -> Tensor:
        """The taps are left out."""
        return self.teacher.logits(hidden)


def windows(
    sequences: Sequence[Sequence[int]], start: np.ndarray, end: np.ndarray, chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The calls that read tokens ``start`` to ``end - 1`` of every sequence.

    Args:
        sequences: B of them, each with the token after its last one to read, if there is one.
        start, end: ``[B]`` integers.
        chunk: C.

    Yields:
        window ``[B, C + 1]``, start ``[B]`` and count ``[B]``, int32, as a prefill takes them; a `Reading`
        takes the window without its last column.
    """
    at = start.astype(np.int32)
    while (at < end).any():
        count = np.minimum(end - at, chunk).clip(0).astype(np.int32)
        window = np.zeros((len(sequences), chunk + 1), np.int32)
        for row, sequence in enumerate(sequences):
            part = sequence[at[row] : at[row] + chunk + 1]
            window[row, : len(part)] = part
        yield window, at, count
        at = at + count


@dataclass(frozen=True)
class Piece:
    """A chunk of one sequence, read.

    Attributes:
        number: of the sequence.
        start: position of its first token.
        values: what ``finish`` made of its rows, ``[count, ...]`` each.
        last: whether the sequence ends with it.
    """

    number: int
    start: int
    values: tuple[np.ndarray, ...]
    last: bool


class Reader:
    """Reads sequences, B at a time; where one has ended the next one begins."""

    def __init__(self, teacher: Teacher, finish: nn.Cell, chunk: int) -> None:
        """Read with one graph.

        Args:
            teacher: its caches bound the length of a sequence.
            finish: see ``Reading``.
            chunk: C, tokens of a sequence per forward.
        """
        self._batch, self._chunk = teacher.cache.shape[0], chunk
        self._reading = Reading(teacher, finish)

    def pieces(self, sequences: Iterable[tuple[int, Sequence[int]]]) -> Iterator[Piece]:
        """Read sequences, each with a number to know it by; pieces of one come in order."""
        waiting = iter(sequences)
        rows: list[tuple[int, Sequence[int], int] | None] = [None] * self._batch
        while True:
            for row, held in enumerate(rows):
                if held is None and (following := next(waiting, None)) is not None:
                    rows[row] = (*following, 0)
            if not any(rows):
                return
            tokens = np.zeros((self._batch, self._chunk), np.int32)
            start, count = np.zeros(self._batch, np.int32), np.zeros(self._batch, np.int32)
            for row, held in enumerate(rows):
                if held is not None:
                    _, sequence, at = held
                    part = sequence[at : at + self._chunk]
                    tokens[row, : len(part)] = part
                    start[row], count[row] = at, len(part)
            read = self._reading(Tensor(tokens), Tensor(start), Tensor(count))
            values = [each.asnumpy() for each in (read if isinstance(read, tuple) else (read,))]
            for row, held in enumerate(rows):
                if held is None:
                    continue
                number, sequence, at = held
                end = at + int(count[row])
                last = end == len(sequence)
                rows[row] = None if last else (number, sequence, end)
                yield Piece(number, at, tuple(each[row, : end - at] for each in values), last)
