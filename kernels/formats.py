"""Weights as kernels take them: the formats that there are kernels for, and the refusal of all others."""

from typing import Protocol

import numpy as np

from ms_eagle.errors import UserError

FLOATS = ("float32", "float16", "bfloat16")


class StoredWeight(Protocol):
    """What kernels need of a ``models.weight.Weight``, which says what the formats are."""

    @property
    def format(self) -> str:
        """Such as ``float32`` or ``int8``."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """``[out, in]`` of a matrix."""
        ...

    def dense(self) -> np.ndarray:
        """The values, float32 or float16."""
        ...


def floats(weight: StoredWeight, kernels: str) -> np.ndarray:
    """The values of a weight, for kernels that know floats only.

    Args:
        weight: float32 and float16 are not copied.
        kernels: their name, for the message.

    Raises:
        UserError: the weight is quantised.
    """
    if weight.format not in FLOATS:
        raise UserError(
            f"a weight {list(weight.shape)} is {weight.format}, for which there are no {kernels} kernels; "
            f"expected {', '.join(FLOATS)}: use a checkpoint in one of these."
        )
    return weight.dense()
