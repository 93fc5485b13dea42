"""Conversations packed whole into rows of fixed length."""

import bisect

import numpy as np


def pack(lengths: np.ndarray, room: int, rng: np.random.Generator | None) -> list[list[int]]:
    """Pack items into rows: the longest first, each into the fullest row that still has room for it.

    How many rows there are depends on the lengths alone, so every epoch has as many.

    Args:
        lengths: integers ``[n]``, each from 1 to ``room``.
        room: T, tokens of a row.
        rng: shuffles items of equal length among each other, items within a row, and the rows; None keeps
            their order.

    Returns: for each row the indices of its items, together at most ``room`` long.
    """
    order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room left and row, ascending
    for item in order:
        length = int(lengths[item])
        place = bisect.bisect_left(free, (length, -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(int(item))
        bisect.insort(free, (left - length, row))
    if rng is None:
        return rows
    for row in rows:
        rng.shuffle(row)
    return [rows[i] for i in rng.permutation(len(rows))]
