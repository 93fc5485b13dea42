"""A drafter that sees only the last W positions: an ablation; the teacher sees everything.

The EAGLE-Pangu paper (arXiv 2603.08088) tries the same and finds that it costs acceptance.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops


class WindowedRows(nn.Cell):
    """In the place of a drafter's ``rows``: hands on what rows see, cut to the window."""

    def __init__(self, rows: nn.Cell, window: int) -> None:
        super().__init__()
        self.rows, self.window = rows, window

    def construct(self, positions: Tensor, slots: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        """Positions and slots ``[B, N]`` int32, and ``seen`` as for `windowed`."""
        return self.rows(positions, slots, windowed(seen, positions, self.window))


def windowed(seen: Tensor, positions: Tensor, window: int) -> Tensor:
    """What rows see of the last ``window`` positions, their own included.

    A committed token's slot is its position; the ancestors in the tree of a row that is at least as deep as
    the window is long would be lost, so ``window`` must reach the depth of the tree.

    Args:
        seen: a mask ``[B, 1, N, S]`` bool, True = discard, or lists ``[B, N, 2 + X]`` int32: how many first
            slots are seen, how many others, and those.
        positions: ``[B, N]`` int32.
        window: W, a Python integer.

    Returns:
        the same form; lists have room for ``W`` slots more.
    """
    batch, rows = positions.shape
    first = ops.maximum(positions + (1 - window), ops.zeros_like(positions))
    if seen.dtype == ms.bool_:
        slots = seen.shape[3]
        slot = ops.arange(slots).astype(ms.int32).reshape(1, 1, 1, slots)
        return ops.logical_or(seen, slot < first.reshape(batch, 1, rows, 1))
    room = seen.shape[2] - 2
    first = first.reshape(batch, rows, 1)
    prefix, count, others = seen[:, :, 0:1], seen[:, :, 1:2], seen[:, :, 2 : 2 + room]
    kept = ops.maximum(prefix - first, ops.zeros_like(prefix))
    place = ops.broadcast_to(
        ops.arange(window + room).astype(ms.int32).reshape(1, 1, window + room), (batch, rows, window + room)
    )
    other = ops.minimum(ops.maximum(place - kept, ops.zeros_like(place)), ops.full_like(place, room - 1))
    listed = ops.select(place < kept, first + place, ops.gather_d(others, 2, other))
    return ops.cat((ops.zeros_like(prefix), kept + count, listed), 2)
