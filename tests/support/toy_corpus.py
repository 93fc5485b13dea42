"""Small corpora of random tokens with the arrays of a real one."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np


def corpus(
    lengths: Sequence[int], *, vocabulary: int = 96, sources: Sequence[int] | None = None, seed: int = 0
) -> SimpleNamespace:
    """Conversations of the given lengths: the first half asks, the second answers.

    Args:
        sources: source of each conversation; all 0 by default.
    """
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    sources = np.zeros(len(lengths), np.uint8) if sources is None else np.asarray(sources, np.uint8)
    return SimpleNamespace(
        ids=rng.integers(3, vocabulary, offsets[-1]).astype(np.int32),
        role=np.concatenate([np.arange(n) >= n // 2 for n in lengths]).astype(np.uint8),
        offsets=offsets,
        source=sources,
        source_names=[f"source{i}" for i in range(int(sources.max(initial=0)) + 1)],
    )
