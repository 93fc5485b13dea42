"""Random weights by the names and shapes of a model's own: for exports, measurements and first steps."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ms_eagle.models.weight import Weight


def random_tensor(
    name: str,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    *,
    scale: float | None = None,
    draws: type[np.floating] = np.float32,
    most: int | None = None,
) -> np.ndarray:
    """A tensor, float32: ones for a norm, else normal numbers.

    Args:
        name: of a tensor in a checkpoint; a norm is called so.
        shape: of the tensor.
        rng: where the numbers come from.
        scale: standard deviation; None is ``1 / sqrt(inputs)``.
        draws: number format in which they are drawn and scaled.
        most: how many are drawn; a larger tensor repeats them. None draws all.
    """
    if "norm" in name:
        return np.ones(shape, np.float32)
    size = int(np.prod(shape))
    numbers = rng.standard_normal(size if most is None else min(size, most), draws)
    numbers *= draws(shape[-1] ** -0.5 if scale is None else scale)
    return np.resize(numbers.astype(np.float32, copy=False), shape)


@dataclass(frozen=True)
class RandomCheckpoint:
    """In place of ``directory.Checkpoint``: every tensor of ``shapes`` drawn anew, alike on every call.

    Attributes:
        shapes: of all tensors, by name.
        scale, most: see ``random_tensor``.
    """

    shapes: Mapping[str, tuple[int, ...]]
    scale: float | None = None
    most: int | None = None
    quantised: ClassVar[bool] = False
    converted: ClassVar[tuple[str, ...]] = ()

    def weight(self, name: str) -> Weight:
        """A tensor, float32."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        values = random_tensor(name, self.shapes[name], rng, scale=self.scale, most=self.most)
        return Weight.of(values)
