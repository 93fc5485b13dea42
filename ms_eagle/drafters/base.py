"""What every drafter is, whatever it drafts with: the interface between drafting and all the rest.

A drafter is a Cell whose methods become part of a cycle's graph, over caches of its own. Its state is one
tensor, passed in and out; it needs no reset, for what a request's first tokens give replaces it.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from mindspore import Tensor, nn, ops
from typing_extensions import override

from ms_eagle.models.backend import Backend
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.stage import Stage
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.growth import Pool
from ms_eagle.tree.shape import TreeShape


class Needs(NamedTuple):
    """What a drafter is given.

    Attributes:
        taps: teacher blocks whose inputs it reads; empty for none.
        hints: whether it wants arrays from the host in every cycle, see ``Drafter.hints``.
        sparse: whether there are cycles in which it proposes nothing, see ``Drafter.proposes``; these are run
            as plain decoding.
    """

    taps: tuple[int, ...] = ()
    hints: bool = False
    sparse: bool = False


class Drafter(nn.Cell):
    """Proposes candidates and takes in what was emitted.

    Attributes:
        needs: see ``Needs``.
        depth: D, the longest path it proposes; 0 for none.
        pool: how many candidates it makes, the root not counted.
        scripted: whether it drafts from the answer itself, which must be known before (``Request.script``).
    """

    needs = Needs()
    depth = 0
    pool = 0
    scripted = False

    @abstractmethod
    def empty(self, batch: int) -> Tensor:
        """The state ``[B, ...]`` before any token."""

    @abstractmethod
    def read(self, window: Tensor, taps: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Take in a chunk of the prompt.

        Args:
            window: ``[B, C + 1]`` int32: the chunk and the token after it.
            taps: ``[B, C, F]``, the teacher's taps at positions ``start + r``.
            start: ``[B]`` int32, the committed length before the chunk.
            count: ``[B]`` int32, how many rows count; 0 leaves a sequence alone.
            state: ``[B, ...]``.

        Returns:
            the new state.
        """

    @abstractmethod
    def propose(
        self, root: Tensor, n: Tensor, active: Tensor, state: Tensor, *hints: Tensor
    ) -> tuple[Pool, Tensor]:
        """Make the pool of candidates.

        Args:
            root: ``[B]`` int32; n: ``[B]`` int32; active: ``[B]`` bool, see ``cycle``.
            state: ``[B, ...]``.
            hints: what the method ``hints`` returned, as tensors.

        Returns:
            the pool, ``1 + pool`` entries, and ``[B]`` bool: the drafter's logits are NaN somewhere.
        """

    @abstractmethod
    def take(self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Take in what a cycle emitted.

        Args:
            taps: ``[B, R, F]``, the teacher's taps at positions ``n + r``.
            emitted: ``[B, R]`` int32, the token after each of these positions.
            n: ``[B]`` int32, the committed length before the cycle.
            count: ``[B]`` int32: how many of the R rows count; 0 leaves a sequence alone.
            state: ``[B, ...]``.

        Returns:
            the new state.
        """

    def caches(self) -> tuple[KVCache, ...]:
        """Its caches: to clear, to watch, to export."""
        return ()

    def resized(self, depth: int, branch: int) -> "Drafter":
        """The same drafter, weights, caches and state alike, for trees of another size.

        Raises:
            UserError: it cannot make them.
        """
        raise NotImplementedError

    def hints(
        self, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """Arrays of fixed shapes for the next cycle, made on the host from what it knows already.

        Args:
            sequences: tokens of B sequences, the root last; empty where a sequence takes no part.
            scripts: of a scripted drafter: the whole sequence to come, prompt included; else empty.
        """
        return ()

    def proposes(self, hints: Sequence[np.ndarray]) -> bool:
        """Whether it proposes anything for any sequence, given what ``hints`` returned."""
        return True

    def stages(self) -> "Stages":
        """Its parts for reference mode and profiles."""
        return WholeStages(self)


class Blueprint(Protocol):
    """A drafter that was found and checked against its teacher; its weights are not placed yet."""

    @property
    def needs(self) -> Needs:
        """See ``Needs``."""
        ...

    @property
    def files(self) -> Sequence[Mapping[str, str]]:
        """Of its weights, as manifests list them: ``file`` and ``sha256``."""
        ...

    def check(self, shape: TreeShape) -> None:
        """Refuse trees that it cannot draft.

        Raises:
            UserError: naming the key and what is possible.
        """

    def build(
        self, teacher: Teacher, backend: Backend, shape: TreeShape, *, slots: int, positions: int
    ) -> Drafter:
        """Place the weights and allocate the caches.

        Args:
            teacher: with the taps it needs.
            backend: what its layers are made of.
            shape: of the trees it drafts at first, see ``Drafter.resized``.
            slots: S_d, cache rows per sequence; positions: how many positions rotary tables cover.
        """
        ...


class Watch(Protocol):
    """Looks at what a stage of drafting has made, before the next one runs."""

    def rows(self, rows: tuple[Tensor, Tensor, Tensor], n: Tensor, lineage: Tensor | None) -> None:
        """Positions, slots and visible keys of a forward to come; ``lineage`` of a level, None of a chain."""

    def written(self, rows: tuple[Tensor, Tensor, Tensor], n: Tensor) -> None:
        """The forward over these rows is done."""

    def grown(self, pool: Pool, beam: tuple[Tensor, ...], parents: int) -> None:
        """A level has been added; ``parents`` is how many nodes made it."""


class Stages(Protocol):
    """A drafter's work cut into Cells that are compiled one by one."""

    @property
    def cells(self) -> tuple[nn.Cell, ...]:
        """All of them."""
        ...

    def propose(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        state: Tensor,
        hints: tuple[Tensor, ...],
        watch: Watch | None,
    ) -> tuple[Pool, Tensor]:
        """As ``Drafter.propose``."""
        ...

    def take(
        self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor, watch: Watch | None
    ) -> Tensor:
        """As ``Drafter.take``."""
        ...


class WholeStages:
    """``Stages`` of any drafter: ``propose`` and ``take``, a Cell each."""

    def __init__(self, drafter: Drafter) -> None:
        self._propose, self._take = Stage(drafter.propose), Stage(drafter.take)
        self.cells = (self._propose, self._take)

    def propose(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        state: Tensor,
        hints: tuple[Tensor, ...],
        watch: Watch | None,
    ) -> tuple[Pool, Tensor]:
        """See ``Stages``."""
        return self._propose(root, n, active, state, *hints)

    def take(
        self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor, watch: Watch | None
    ) -> Tensor:
        """See ``Stages``."""
        return self._take(taps, emitted, n, count, state)


class Stateless(Drafter):
    """A drafter that keeps nothing of what is read and emitted; its state ``[B, 1]`` says nothing."""

    @override
    def empty(self, batch: int) -> Tensor:
        return ops.zeros((batch, 1))

    @override
    def read(self, window: Tensor, taps: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        return state

    @override
    def take(self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor) -> Tensor:
        return state


class NoDrafter(Stateless):
    """The teacher alone: nothing is proposed."""
