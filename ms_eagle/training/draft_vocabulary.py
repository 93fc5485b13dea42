"""The draft vocabulary: the tokens that the teacher answers with most often."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ms_eagle.errors import UserError


@dataclass(frozen=True)
class DraftVocabulary:
    """Which of the teacher's V tokens a head can propose.

    Attributes:
        target_ids: int32 ``[V_d]``, ascending: the target id of each draft id.
        vocab_size: V.
    """

    target_ids: np.ndarray
    vocab_size: int

    @property
    def d2t(self) -> np.ndarray:
        """int64 ``[V_d]``: target id minus draft id, as heads are published."""
        return self.target_ids.astype(np.int64) - np.arange(len(self.target_ids))

    @property
    def t2d(self) -> np.ndarray:
        """bool ``[V]``: the target ids that have a draft id."""
        mask = np.zeros(self.vocab_size, bool)
        mask[self.target_ids] = True
        return mask

    def coverage(self, counts: np.ndarray) -> float:
        """Share of tokens counted in ``[V]`` that have a draft id; 1 where nothing was counted."""
        return float(counts[self.target_ids].sum() / max(counts.sum(), 1))


def answer_counts(
    ids: np.ndarray, role: np.ndarray, offsets: np.ndarray, conversations: np.ndarray, vocab_size: int
) -> np.ndarray:
    """How often the teacher produced each token in some conversations, int64 ``[V]``.

    Args:
        ids, role: ``[T]``; role is 1 where the teacher produced the token.
        offsets: ``[n + 1]``, where conversations begin and end.
        conversations: numbers of those to count in.
    """
    chosen = np.zeros(len(offsets) - 1, bool)
    chosen[conversations] = True
    counted = np.repeat(chosen, np.diff(offsets)) & (role == 1)
    return np.bincount(ids[counted], minlength=vocab_size)


def choose(counts: np.ndarray, size: int, always: Collection[int]) -> DraftVocabulary:
    """The ``size`` most frequent tokens; of equally frequent ones those of lower id.

    Args:
        counts: int64 ``[V]``, from ``answer_counts``.
        size: V_d.
        always: target ids that are in whatever their counts, such as those that end a sequence.

    Raises:
        UserError: ``size`` is larger than V or too small for ``always``.
    """
    vocab_size = len(counts)
    if not max(len(set(always)), 1) <= size <= vocab_size:
        raise UserError(
            f"data.draft_vocab_size is {size}; expected {max(len(set(always)), 1)} (the teacher's special "
            f"tokens) to {vocab_size} (its vocabulary)."
        )
    rank = counts.astype(np.int64)
    rank[list(always)] = np.iinfo(np.int64).max
    order = np.argsort(-rank, kind="stable")  # the negative of the largest int64 exists
    return DraftVocabulary(np.sort(order[:size]).astype(np.int32), vocab_size)
