"""All static sizes of an engine, computed once: no shape depends on a prompt, a step or acceptance.

A bundle runs without the model code: nothing here imports a Cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ms_eagle.tree.shape import Tier


@dataclass(frozen=True)
class Sizes:
    """What every tensor's shape follows from.

    Attributes:
        batch: B, sequences in flight.
        chunk: C, prompt tokens that one prefill call reads of each.
        capacity: most tokens of a sequence, prompt and answer together.
        tiers: the trees that are compiled; all share the caches, so the largest counts.
    """

    batch: int
    chunk: int
    capacity: int
    tiers: tuple[Tier, ...] = (None,)

    @classmethod
    def of(cls, batch: int, chunk: int, capacity: int, tiers: Sequence[Tier]) -> "Sizes":
        """Sizes for tiers in any kind of sequence."""
        return cls(batch, chunk, capacity, tuple(tiers))

    @property
    def slots(self) -> int:
        """S, rows per sequence of the teacher's cache: the capacity, a tree's rows, and the trash row."""
        return self.capacity + max(1 if tier is None else tier.rows for tier in self.tiers) + 1

    @property
    def positions(self) -> int:
        """P, how many absolute positions the teacher's rotary tables and a request's uniforms cover."""
        return self.slots

    @property
    def depth(self) -> int:
        """The largest D."""
        return max(0 if tier is None else tier.depth for tier in self.tiers)

    @property
    def draft_slots(self) -> int:
        """S_d, rows per sequence of a drafter's cache: the capacity, its levels, and the trash row."""
        levels = max(0 if tier is None else (tier.depth - 1) * tier.branch for tier in self.tiers)
        return self.capacity + levels + 1

    @property
    def draft_positions(self) -> int:
        """How many absolute positions a drafter's rotary tables cover."""
        return self.draft_slots + self.depth


@dataclass(frozen=True)
class Facts:
    """What holds of graphs wherever they come from.

    Attributes:
        sizes: B, C, capacity and the tiers, the usual one first.
        positions: P, how many absolute positions a call may name.
        vocab_size: V.
        drafter, kernels, mode: names for reports; drafter as in ``drafter.kind``.
        drafts: whether anything is proposed.
        scripted: see ``Drafter``.
        dtype: as in ``model.dtype``, for messages.
    """

    sizes: Sizes
    positions: int
    vocab_size: int
    drafter: str
    kernels: str
    dtype: str
    mode: str = "performance"
    drafts: bool = False
    scripted: bool = False
