"""Which conversations are trained on and which are held out."""

from dataclasses import dataclass

import numpy as np

from ms_eagle.errors import UserError


@dataclass(frozen=True)
class Split:
    """Numbers of conversations, ascending.

    Attributes:
        train: int64 ``[n]``.
        held_out: int64 ``[m]``; the same as ``train`` where nothing is held out.
    """

    train: np.ndarray
    held_out: np.ndarray


def split(source: np.ndarray, role: np.ndarray, offsets: np.ndarray, fraction: float) -> Split:
    """Hold out the last conversations of each source, and leave out those without an answer.

    Args:
        source: integers ``[n]``, where each conversation came from.
        role: ``[T]``, 1 where the teacher produced the token.
        offsets: ``[n + 1]``, where conversations begin and end.
        fraction: of each source, rounded up; 0 holds nothing out and evaluates on what is trained on.

    Raises:
        UserError: nothing is left to train on, or nothing to evaluate on.
    """
    sums = np.concatenate([[0], np.cumsum(role, dtype=np.int64)])
    answered = sums[offsets[1:]] > sums[offsets[:-1]]
    held = np.zeros(len(source), bool)
    for kind in np.unique(source):
        own = np.flatnonzero((source == kind) & answered)
        count = int(np.ceil(len(own) * fraction)) if len(own) > 1 else 0
        held[own[len(own) - count :]] = True
    train = np.flatnonzero(answered & ~held)
    if not len(train):
        raise UserError(
            f"the corpus has {len(source)} conversations, none with an answer to train on besides those held "
            "out: make a larger one with tools/make_corpus.py."
        )
    held_out = np.flatnonzero(held) if fraction > 0 else train
    if not len(held_out):
        raise UserError(
            "no source of the corpus has two conversations, so that none can be held out for evaluation: use "
            "a larger corpus, or data.held_out=0 to evaluate on what is trained on."
        )
    return Split(train, held_out)
