"""Batches: rows of packed conversations with the teacher's features, addressed by the number of the step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.training.features.source import Conversations, FeatureSource, tokens
from ms_eagle.training.features.teacher import Features
from ms_eagle.training.packing import pack


class AnsweredConversations(Conversations, Protocol):
    """The part of a corpus that batches are made of.

    Attributes:
        role: uint8 ``[T]``, 1 where the teacher produced the token.
    """

    role: np.ndarray


@dataclass(frozen=True)
class Batch:
    """B rows of T tokens.

    Attributes:
        tokens: int32 ``[B, T]``; 0 in padding.
        segments: int32 ``[B, T]``: conversations of a row numbered from 1; 0 is padding.
        positions: int32 ``[B, T]``, within the conversation, from 0; 0 in padding.
        answer: bool ``[B, T]``: the teacher produced the token.
        taps: float16 ``[B, T, F]``, the teacher's tapped states side by side; 0 in padding.
        final: float16 ``[B, T, E]``, what the teacher's LM head multiplies; 0 in padding.
        conversations: numbers in the corpus of the conversations of each row, for messages.
    """

    tokens: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    answer: np.ndarray
    taps: np.ndarray
    final: np.ndarray
    conversations: tuple[tuple[int, ...], ...]


class Batches:
    """Epochs of batches over some conversations of a corpus.

    Attributes:
        steps_per_epoch: batches of an epoch. Rows that do not fill a last batch are left out of that epoch,
            other ones in each; fewer rows than one batch are filled up with padding.
    """

    def __init__(
        self,
        corpus: AnsweredConversations,
        features: FeatureSource,
        conversations: np.ndarray,
        *,
        rows: int,
        length: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Plan the epochs; nothing is read yet.

        Args:
            corpus, features: the same conversations.
            conversations: int64 ``[n]``, the numbers of those to use.
            rows: B.
            length: T; longer conversations are cut there.
            seed: of the order.
            rank, ranks: this worker, and how many share each step's rows: each takes B others.

        Raises:
            UserError: a worker would have no rows at all.
        """
        self._corpus, self._features, self._conversations = corpus, features, conversations
        self._rows, self._length, self._seed = rows, length, seed
        self._rank, self._ranks = rank, ranks
        self._lengths = np.minimum(np.diff(corpus.offsets)[conversations], length)
        self._epoch = (-1, [[0]])
        self._row_count = len(pack(self._lengths, length, None))
        if self._row_count <= (ranks - 1) * rows:
            raise UserError(
                f"the corpus fills {self._row_count} rows of {length} tokens, too few for {ranks} workers of "
                f"{rows} rows each: use fewer workers, fewer rows or a larger corpus."
            )
        self.steps_per_epoch = max(1, self._row_count // (rows * ranks))

    @property
    def fill(self) -> float:
        """Fraction of the rows of an epoch that holds tokens."""
        return float(self._lengths.sum() / (self._row_count * self._length))

    def step(self, number: int) -> Batch:
        """The batch of a step, counted from 0; the same for the same number, whatever came before."""
        epoch, place = divmod(number, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            rng = np.random.default_rng((self._seed, epoch))
            self._epoch = (epoch, pack(self._lengths, self._length, rng))
        begin = (place * self._ranks + self._rank) * self._rows
        return self._batch(self._epoch[1][begin : begin + self._rows])

    def all(self) -> Iterator[Batch]:
        """Every conversation once, in batches of B rows in a fixed order, the last one filled up."""
        rows = pack(self._lengths, self._length, None)
        for begin in range(0, len(rows), self._rows):
            yield self._batch(rows[begin : begin + self._rows])

    def _batch(self, rows: Sequence[Sequence[int]]) -> Batch:
        numbers = tuple(tuple(int(self._conversations[i]) for i in row) for row in rows)
        asked = [number for row in numbers for number in row]
        features = dict(zip(asked, self._features.read(asked), strict=True))
        shape, widths = (self._rows, self._length), features[asked[0]]
        batch = Batch(
            tokens=np.zeros(shape, np.int32),
            segments=np.zeros(shape, np.int32),
            positions=np.zeros(shape, np.int32),
            answer=np.zeros(shape, bool),
            taps=np.zeros((*shape, widths.taps.shape[1]), np.float16),
            final=np.zeros((*shape, widths.final.shape[1]), np.float16),
            conversations=numbers,
        )
        for row, members in enumerate(numbers):
            at = 0
            for segment, number in enumerate(members, 1):
                at = self._place(batch, (row, at, segment), number, features[number])
        return batch

    def _place(self, batch: Batch, place: tuple[int, int, int], number: int, features: Features) -> int:
        """Write a conversation at row, token and as segment ``place``; return where it ends."""
        row, at, segment = place
        ids = tokens(self._corpus, number)[: self._length]
        count, begin = len(ids), int(self._corpus.offsets[number])
        here = (row, slice(at, at + count))
        batch.tokens[here] = ids
        batch.segments[here] = segment
        batch.positions[here] = np.arange(count)
        batch.answer[here] = self._corpus.role[begin : begin + count] == 1
        batch.taps[here] = features.taps[:count]
        batch.final[here] = features.final[:count]
        return at + count
