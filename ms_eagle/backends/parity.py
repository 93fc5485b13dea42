"""Whether an attention kernel agrees with eager attention: the start-up probe and the self-test.

A kernel may be right on short caches and wrong on long ones (vllm-ascend issue 15503: a mask was ignored
beyond 512 keys), so the lengths lie around the places where kernels change their ways of working.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.kernels.fused import FusedAttention
from ms_eagle.kernels.operators import Operators

KV_LENGTHS = (500, 512, 513, 1040)
"""Of the start-up probe."""

TOLERANCES = {ms.float32: 2e-5, ms.float16: 4e-3, ms.bfloat16: 3e-2}
"""Largest difference between two right kernels on numbers around 1: a few roundings of the format."""

_ROWS = 17  # of the probe: a tree of 16 nodes
_SEED = 8


@dataclass(frozen=True)
class Case:
    """Sizes of one attention call: B, H, H_kv, d, N and S."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    rows: int
    slots: int


@dataclass(frozen=True)
class Found:
    """What came of a case: the largest difference, and the largest one that is allowed."""

    case: Case
    dtype: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the kernels agree; NaN does not."""
        return self.difference <= self.tolerance

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        shown = self.difference if np.isfinite(self.difference) else None
        return {
            **asdict(self.case),
            "dtype": self.dtype,
            "difference": shown,
            "tolerance": self.tolerance,
            "passed": self.passed,
        }


class NativeAttention(nn.Cell):
    """Our CPU kernel alone, by the contract of ``kernels.contract``."""

    def __init__(self, operators: Operators, slots: int) -> None:
        super().__init__()
        self.visible, self.attend = operators.visible(slots), operators.attend

    def construct(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attend; float32."""
        return self.attend(query, key, value, self.visible(mask))


def compare(kernel: nn.Cell, case: Case, dtype: ms.Type) -> Found:
    """Run a kernel and eager attention on the same random numbers and the mask of a random tree."""
    rng = np.random.default_rng((_SEED, *asdict(case).values()))

    def numbers(heads: int, rows: int) -> Tensor:
        shape = (case.batch, heads, rows, case.head_dim)
        return Tensor(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)

    query = numbers(case.heads, case.rows)
    key, value = (numbers(case.kv_heads, case.slots) for _ in range(2))
    mask = Tensor(tree_mask(case, rng))
    one, other = (
        attend(query, key, value, mask).astype(ms.float32).asnumpy()
        for attend in (kernel, EagerAttention(case.head_dim))
    )
    difference = float(np.abs(one - other).max())
    name = str(dtype).lower()
    return Found(case, name, difference, TOLERANCES[dtype])


def tree_mask(case: Case, rng: np.random.Generator) -> np.ndarray:
    """The mask of a random tree before the trash slot: ``[B, 1, N, S]``, True = discard.

    Row 0 is the root; every other row sees the committed keys, its ancestors and itself.
    """
    committed = case.slots - case.rows - 1
    mask = np.ones((case.batch, 1, case.rows, case.slots), bool)
    for sequence in range(case.batch):
        for row in range(case.rows):
            if row:
                parent = int(rng.integers(row))
                mask[sequence, 0, row] = mask[sequence, 0, parent]
            mask[sequence, 0, row, :committed] = False
            mask[sequence, 0, row, committed + row] = False
    return mask


def probe(heads: int, kv_heads: int, head_dim: int, dtype: ms.Type) -> Found | None:
    """The first KV length at which fused attention differs from eager on this device; None: it never does."""
    kernel = FusedAttention(heads, head_dim)
    for length in KV_LENGTHS:
        found = compare(kernel, Case(1, heads, kv_heads, head_dim, _ROWS, length), dtype)
        if not found.passed:
            return found
    return None


def cases(lengths: Sequence[int] = KV_LENGTHS) -> Iterator[Case]:
    """What the self-test runs: heads alone and in groups, one row, a tree, a chunk, one sequence and two."""
    for batch, heads, kv_heads, head_dim in ((1, 4, 4, 64), (2, 8, 2, 128), (1, 9, 3, 64)):
        for rows in (1, 17, 64):
            for length in lengths:
                yield Case(batch, heads, kv_heads, head_dim, rows, length)
