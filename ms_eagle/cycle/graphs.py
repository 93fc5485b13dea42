"""The compiled Cells that the host loop drives, together with their fixed shapes."""

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_eagle.cycle.cycle import PlainCycle, TreeCycle
from ms_eagle.cycle.prefill import Prefill
from ms_eagle.cycle.sizes import Facts, Sizes
from ms_eagle.cycle.verifier import GreedyChoice, SampledChoice, Verifier
from ms_eagle.drafters.base import Drafter, NoDrafter
from ms_eagle.drafters.registry import NONE
from ms_eagle.models.commit import FastReorder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.shape import Tier, TreeShape, log_confidence


class Graphs:
    """The graphs over one set of caches: one prefill, and a cycle for every tier, greedy and sampled.

    Attributes:
        facts: see ``Facts``.
        teacher, drafter: the Cells that all graphs share; the drafter is that of the first tier.
    """

    def __init__(
        self,
        teacher: Teacher,
        drafter: Drafter,
        sizes: Sizes,
        *,
        name: str,
        kernels: str,
        dtype: str,
        confidence: float = 0.0,
        reorder: Callable[[KVCache], nn.Cell] | None = None,
        choice: SampledChoice | None = None,
    ) -> None:
        """Make the Cells; nothing compiles before its first call.

        Args:
            teacher: with taps for the drafter, and a cache of ``sizes.slots``.
            drafter: with caches of ``sizes.draft_slots``.
            sizes: B, C, capacity and tiers.
            name: of the drafter; kernels: of the teacher's attention kernel; dtype: see ``Facts``.
            confidence: nodes of a lower cumulative probability become padding.
            reorder: makes the Cell that commits accepted rows; None is ``commit.FastReorder``.
            choice: that of other graphs over the same caches, whose record of seen tokens is shared.
        """
        self.teacher, self.drafter = teacher, drafter
        drafts = any(tier is not None for tier in sizes.tiers)
        self.facts = Facts(
            sizes,
            teacher.cache.shape[2],  # also of graphs that need fewer: one table of uniforms serves all
            teacher.vocab_size,
            name,
            kernels,
            dtype,
            drafts=drafts,
            scripted=drafter.scripted,
        )
        self._prefill = Prefill(teacher, drafter)
        self._sampled = choice or SampledChoice(teacher)
        choices = {False: GreedyChoice(teacher), True: self._sampled}
        self._verifiers = {sampled: Verifier(teacher, each) for sampled, each in choices.items()}
        self._cycles: dict[tuple[Tier, bool], nn.Cell] = {}
        commit, threshold = (reorder or FastReorder)(teacher.cache), log_confidence(confidence)
        resting = () if None in sizes.tiers or not drafter.needs.sparse else (None,)
        for tier in (*sizes.tiers, *resting):
            sized = drafter if tier is None else self._sized(tier)
            for sampled, verifier in self._verifiers.items():
                self._cycles[tier, sampled] = (
                    PlainCycle(verifier, sized)
                    if tier is None
                    else TreeCycle(sized, verifier, commit, tier, threshold)
                )

    def _sized(self, tier: TreeShape) -> Drafter:
        """The drafter for a tier's trees."""
        first = self.drafter
        if (tier.depth, tier.pool_size) == (first.depth, first.pool):
            return first
        return first.resized(tier.depth, tier.branch)

    def prefill(self) -> nn.Cell:
        """The Cell that reads a chunk."""
        return self._prefill

    def cycle(self, tier: Tier, sampled: bool) -> nn.Cell:
        """The Cell of one cycle: argmax only, or with every sampling option."""
        return self._cycles[tier, sampled]

    def verifier(self, sampled: bool) -> Verifier:
        """The teacher's forward and choice that all tiers share."""
        return self._verifiers[sampled]

    def empty(self) -> Tensor:
        """The drafter's state before any token."""
        return self.drafter.empty(self.facts.sizes.batch)

    def hints(
        self, tier: Tier, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """See ``Drafter.hints``; none for plain decoding."""
        return () if tier is None else self._cycles[tier, False].drafter.hints(sequences, scripts)

    def tier_for(self, tier: Tier, hints: Sequence[np.ndarray]) -> Tier:
        """``tier``, or plain decoding for a cycle in which the drafter proposes nothing."""
        if tier is None or not self.drafter.needs.sparse:
            return tier
        return tier if self.drafter.proposes(hints) else None

    @property
    def seen(self) -> Parameter:
        """Which tokens each sequence has, for the repetition penalty: bool ``[B, V]``."""
        return self._sampled.seen

    def clear(self) -> None:
        """Empty all caches."""
        for cache in (self.teacher.cache, *self.drafter.caches()):
            cache.clear()

    def see(self, sequences: Sequence[Sequence[int]]) -> None:
        """Let the repetition penalty know which tokens each of B sequences has."""
        self._sampled.see_only(sequences)

    def alone(self) -> "Graphs":
        """Graphs of the teacher alone over the same caches."""
        sizes = Sizes(self.facts.sizes.batch, self.facts.sizes.chunk, self.facts.sizes.capacity)
        facts = self.facts
        return Graphs(
            self.teacher,
            NoDrafter(),
            sizes,
            name=NONE,
            kernels=facts.kernels,
            dtype=facts.dtype,
            choice=self._sampled,
        )
