"""Cutting prompts into the fixed-size chunks that prefill reads, whatever their lengths (on the host)."""

from collections.abc import Iterator, Sequence

import numpy as np


def windows(
    sequences: Sequence[Sequence[int]], start: np.ndarray, end: np.ndarray, chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The calls that read tokens ``start`` to ``end - 1`` of every sequence.

    Args:
        sequences: B of them, each with the token after its last one to read.
        start, end: ``[B]`` integers.
        chunk: C.

    Yields:
        window ``[B, C + 1]``, start ``[B]`` and count ``[B]``, int32, as ``TeacherPrefill`` takes
        them.
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
