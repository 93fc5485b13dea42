"""The compiled side of decoding, as the host loop knows it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.cycle.sizes import Facts
from ms_eagle.tree.shape import Tier


class Graphs(Protocol):
    """The compiled side of decoding that an ``Engine`` drives; see ``cycle.graphs.Graphs``."""

    facts: Facts

    def prefill(self) -> nn.Cell:
        """The Cell that reads a chunk."""

    def cycle(self, tier: Tier, sampled: bool) -> nn.Cell:
        """The Cell of one cycle, for greedy rows only or for any sampling."""

    def empty(self) -> Tensor:
        """The state before any token."""

    def hints(
        self, tier: Tier, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """Further inputs of a cycle, see ``Drafter.hints``."""

    def tier_for(self, tier: Tier, hints: Sequence[np.ndarray]) -> Tier:
        """``tier``, or plain decoding for a cycle in which the drafter proposes nothing."""

    def clear(self) -> None:
        """Empty all caches."""

    def see(self, sequences: Sequence[Sequence[int]]) -> None:
        """Note which tokens each of B sequences has, for the repetition penalty."""

    def alone(self) -> "Graphs":
        """Graphs of the teacher alone over the same caches."""
