"""Where training takes the teacher's features from: a cache on disk, or the teacher itself."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ms_eagle.training.features.teacher import Features, TeacherFeatures


class Conversations(Protocol):
    """The part of a corpus that features depend on; ``ms_eagle.training.corpus.storage.Corpus`` has it.

    Attributes:
        ids: integers ``[T]``, token ids of all conversations end to end.
        offsets: int64 ``[n + 1]``: conversation i is ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: np.ndarray
    offsets: np.ndarray


class FeatureSource(Protocol):
    """Gives the features of conversations by their numbers in the corpus.

    Attributes:
        taps: blocks whose inputs ``Features.taps`` holds side by side.
    """

    taps: tuple[int, ...]

    def read(self, conversations: Sequence[int]) -> list[Features]:
        """Features of each conversation, in the order asked for.

        Raises:
            UserError: what is stored is damaged; see the source.
        """
        ...


class LiveFeatures:
    """Computes features when they are asked for: no disk, but the teacher runs in every epoch."""

    def __init__(self, corpus: Conversations, teacher: TeacherFeatures) -> None:
        self.taps = teacher.taps
        self._corpus, self._teacher = corpus, teacher

    def read(self, conversations: Sequence[int]) -> list[Features]:
        """See ``FeatureSource``; errors as for ``TeacherFeatures.compute``."""
        features = dict(
            self._teacher.compute((i, tokens(self._corpus, i)) for i in dict.fromkeys(conversations))
        )
        return [features[i] for i in conversations]


def tokens(corpus: Conversations, conversation: int) -> np.ndarray:
    """Token ids of one conversation, int32 ``[t]``."""
    begin, end = corpus.offsets[conversation], corpus.offsets[conversation + 1]
    return corpus.ids[begin:end].astype(np.int32)
