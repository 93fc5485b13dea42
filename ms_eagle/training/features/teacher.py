"""What the drafter learns from: the teacher's taps and last hidden states over known conversations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.errors import UserError
from ms_eagle.loading import Model, load_teacher
from ms_eagle.models.backend import Backend
from ms_eagle.models.teacher import Teacher
from ms_eagle.system.progress import Progress

_BATCH, _CHUNK = 8, 64  # 512 rows a forward: fewer leave a CPU's matrix products below their best rate
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Features:
    """One conversation of t tokens, as the teacher sees it.

    Attributes:
        taps: float16 ``[t, F]``, the inputs of the tapped blocks side by side, F = taps * E.
        final: float16 ``[t, E]``, what the LM head multiplies: the last hidden state after the final norm.
    """

    taps: np.ndarray
    final: np.ndarray


class FeatureReader(nn.Cell):
    """One forward over a chunk of up to C tokens of each of B conversations; the same graph for every one."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(self, tokens: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Read a chunk.

        Args:
            tokens: ``[B, C]`` int32; beyond ``count`` any ids of the vocabulary.
            start: ``[B]`` int32, tokens of the conversation read before.
            count: ``[B]`` int32, how many of the C rows hold tokens; 0 leaves a sequence alone.

        Returns:
            taps ``[B, C, F]`` and final states ``[B, C, E]``; rows beyond ``count`` mean nothing.
        """
        hidden, taps = self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count))
        return taps, hidden


@dataclass
class _Reading:
    """A conversation that occupies one of the B sequences."""

    number: int
    ids: np.ndarray
    taps: np.ndarray
    final: np.ndarray
    done: int = 0


class TeacherFeatures:
    """Runs conversations through a teacher, B at a time, each sequence taking the next when it has ended.

    Attributes:
        taps: blocks whose inputs are taken.
        width: E, the teacher's hidden size.
    """

    def __init__(self, teacher: Teacher, width: int, chunk: int) -> None:
        """Take a teacher made with taps; its batch is B, its caches bound the length of a conversation.

        Args:
            teacher: its ``taps`` are what ``Features.taps`` holds.
            width: E, its hidden size.
            chunk: C, tokens of a conversation per forward; B * C rows are computed together.
        """
        self.width = width
        self._read = FeatureReader(teacher)
        self.taps, self._chunk = teacher.taps, chunk
        self._batch, self._capacity = teacher.cache.shape[0], teacher.cache.shape[2] - 1
        self._vocabulary = teacher.vocab_size

    def compute(self, conversations: Iterable[tuple[int, np.ndarray]]) -> Iterator[tuple[int, Features]]:
        """Compute the features of every conversation.

        Args:
            conversations: each one's number and token ids, integers ``[t]``.

        Yields: number and features, in the order in which they end.

        Raises:
            UserError: a conversation is empty, longer than the caches or has ids outside the vocabulary; a
                feature is not finite or too large for float16.
        """
        waiting = iter(conversations)
        running: list[_Reading | None] = [None] * self._batch
        while True:
            for row, reading in enumerate(running):
                if reading is None and (following := next(waiting, None)) is not None:
                    running[row] = self._begin(*following)
            if not any(running):
                return
            self._advance(running)
            for row, reading in enumerate(running):
                if reading is not None and reading.done == len(reading.ids):
                    running[row] = None
                    yield reading.number, Features(reading.taps, reading.final)

    def _begin(self, number: int, ids: np.ndarray) -> _Reading:
        if not 0 < len(ids) <= self._capacity:
            raise UserError(
                f"conversation {number} has {len(ids)} tokens; expected 1 to {self._capacity}, the longest "
                "the teacher was set up for."
            )
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise UserError(
                f"conversation {number} holds the token id {ids.max()}, outside the teacher's vocabulary of "
                f"{self._vocabulary}: it was made with another tokenizer."
            )
        none = np.empty((len(ids), 0), np.float16)
        return _Reading(number, ids, none, none)

    def _advance(self, running: Sequence[_Reading | None]) -> None:
        """One forward: the next chunk of every running conversation."""
        tokens = np.zeros((self._batch, self._chunk), np.int32)
        start, count = np.zeros(self._batch, np.int32), np.zeros(self._batch, np.int32)
        for row, reading in enumerate(running):
            if reading is not None:
                part = reading.ids[reading.done : reading.done + self._chunk]
                tokens[row, : len(part)] = part
                start[row], count[row] = reading.done, len(part)
        taps, final = self._read(*(Tensor(values, ms.int32) for values in (tokens, start, count)))
        taps, final = taps.asnumpy(), final.asnumpy()
        for row, reading in enumerate(running):
            if reading is None:
                continue
            if not reading.done:
                length = len(reading.ids)
                reading.taps = np.empty((length, self.width * len(self.taps)), np.float16)
                reading.final = np.empty((length, self.width), np.float16)
            end = reading.done + count[row]
            reading.taps[reading.done : end] = self._half(reading.number, taps[row, : count[row]])
            reading.final[reading.done : end] = self._half(reading.number, final[row, : count[row]])
            reading.done = int(end)

    def _half(self, number: int, values: np.ndarray) -> np.ndarray:
        """``values`` as float16, which must hold them."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= _LARGEST:  # NaN compares false
            raise UserError(
                f"conversation {number}: a hidden state of the teacher reaches {largest:g}, beyond float16's "
                f"{_LARGEST:g} (taps: inputs of blocks {', '.join(map(str, self.taps))}): choose other taps."
            )
        return values.astype(np.float16)


def load_features(
    model: Model,
    backend: Backend,
    taps: tuple[int, ...],
    longest: int,
    progress: Progress,
) -> TeacherFeatures:
    """A teacher set up to read conversations.

    Args:
        model, backend: as ``loading`` makes them.
        taps: blocks whose inputs are wanted, ascending.
        longest: most tokens of a conversation.

    Raises:
        UserError: a conversation is longer than the teacher's positions.
    """
    limit = model.decoder.rope.max_positions
    if longest > limit:
        raise UserError(
            f"the longest conversation has {longest} tokens, but the teacher was made for {limit} positions: "
            "it was made with another teacher."
        )
    teacher = load_teacher(model, backend, progress, batch=_BATCH, slots=longest + 1, taps=taps)
    backend.settle(teacher)
    return TeacherFeatures(teacher, model.decoder.hidden_size, _CHUNK)
