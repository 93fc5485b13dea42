"""What the drafter learns from: the teacher's taps and last hidden states over known conversations."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.cycle.sizes import Sizes
from ms_eagle.errors import UserError
from ms_eagle.loading import Model, load_teacher
from ms_eagle.models.backend import Backend
from ms_eagle.models.reading import Reader
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


class _TapsAndHidden(nn.Cell):
    """What a ``Reading`` hands over: taps ``[B, C, F]`` and final states ``[B, C, E]``."""

    def construct(self, hidden: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
        return taps, hidden


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
        self.width, self.taps = width, teacher.taps
        self._reader = Reader(teacher, _TapsAndHidden(), chunk)
        self._capacity, self._vocabulary = teacher.cache.shape[2] - 1, teacher.vocab_size

    def compute(self, conversations: Iterable[tuple[int, np.ndarray]]) -> Iterator[tuple[int, Features]]:
        """Compute the features of every conversation.

        Args:
            conversations: each one's number and token ids, integers ``[t]``.

        Yields: number and features, in the order in which they end.

        Raises:
            UserError: a conversation is empty, longer than the caches or has ids outside the vocabulary; a
                feature is not finite or too large for float16.
        """
        parts: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for piece in self._reader.pieces(self._check(*each) for each in conversations):
            taps, final = (self._half(piece.number, values) for values in piece.values)
            parts.setdefault(piece.number, []).append((taps, final))
            if piece.last:
                taps, final = (np.concatenate(each) for each in zip(*parts.pop(piece.number), strict=True))
                yield piece.number, Features(taps, final)

    def _check(self, number: int, ids: np.ndarray) -> tuple[int, np.ndarray]:
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
        return number, ids

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
    teacher = load_teacher(model, backend, progress, sizes=Sizes(_BATCH, _CHUNK, longest), taps=taps)
    backend.settle(teacher)
    return TeacherFeatures(teacher, model.decoder.hidden_size, _CHUNK)
