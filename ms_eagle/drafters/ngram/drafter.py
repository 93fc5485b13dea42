"""A drafter without weights: candidates found on the host in the text so far (``index``)."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, ops
from typing_extensions import override

from ms_eagle.config.sections import Config
from ms_eagle.drafters.base import Needs, Stateless
from ms_eagle.drafters.ngram.index import Candidate, SuffixIndex
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.growth import Pool
from ms_eagle.tree.shape import TreeShape, candidates

_MOST = 32  # candidates of a cycle; those that no row is left for were looked up in vain


class NgramDrafter(Stateless):
    """Proposes what followed the last tokens before.

    The hints are the pool itself but for the root: tokens, scores, parents and depths, ``[B, P]`` each, in
    order of depth. An entry of score -inf is no candidate.
    """

    needs = Needs(hints=True, sparse=True)

    def __init__(self, depth: int, branch: int, indexes: list[SuffixIndex]) -> None:
        """Draft trees of depth D with up to k children a node.

        Args:
            depth, branch: D and k.
            indexes: of the B slots.
        """
        super().__init__()
        self.depth, self.branch, self.pool = depth, branch, candidates(depth, branch)
        self._indexes = indexes

    @override
    def propose(
        self, root: Tensor, n: Tensor, active: Tensor, state: Tensor, *hints: Tensor
    ) -> tuple[Pool, Tensor]:
        tokens, scores, parents, depths = hints
        first = root.reshape(root.shape[0], 1)
        none = first * 0
        pool = (
            ops.cat((first, tokens), 1),
            ops.cat((none.astype(scores.dtype), scores), 1),
            ops.cat((none, parents), 1),
            ops.cat((none, depths), 1),
        )
        return pool, n < 0

    @override
    def hints(
        self, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        batch = len(sequences)
        tokens, parents = np.zeros((batch, self.pool), np.int32), np.zeros((batch, self.pool), np.int32)
        scores, depths = np.full((batch, self.pool), -np.inf, np.float32), np.ones_like(tokens)
        for row, (sequence, index) in enumerate(zip(sequences, self._indexes, strict=True)):
            if not sequence:
                continue
            index.follow(sequence)
            found = by_depth(index.candidates(min(_MOST, self.pool), self.depth, self.branch))
            size = len(found)
            if size:
                tokens[row, :size], parents[row, :size], depths[row, :size], scores[row, :size] = zip(
                    *found, strict=True
                )
        return tokens, scores, parents, depths

    @override
    def proposes(self, hints: Sequence[np.ndarray]) -> bool:
        return bool(np.isfinite(hints[1]).any())

    @override
    def resized(self, depth: int, branch: int) -> "NgramDrafter":
        return NgramDrafter(depth, branch, self._indexes)


def by_depth(found: Sequence[Candidate]) -> list[Candidate]:
    """The same candidates in order of depth, as a pool has them; parents are numbered anew."""
    order = sorted(range(len(found)), key=lambda number: (found[number].depth, number))
    place = {0: 0} | {old + 1: new + 1 for new, old in enumerate(order)}
    return [found[old]._replace(parent=place[found[old].parent]) for old in order]


class NgramBlueprint:
    """See ``base.Blueprint``."""

    needs, files = NgramDrafter.needs, ()

    def __init__(self, config: Config, decoder: DecoderConfig) -> None:
        """Take the section ``drafter``.

        Raises:
            UserError: ``drafter.shortest`` is above ``drafter.longest``.
        """
        asked = config.drafter
        if asked.shortest > asked.longest:
            raise UserError(
                f"drafter.shortest is {asked.shortest}, drafter.longest is {asked.longest}: set it to that "
                "or less."
            )
        self._lengths, self._vocabulary = (asked.shortest, asked.longest), decoder.vocab_size

    def check(self, shape: TreeShape) -> None:
        """See ``base.Blueprint``; any tree can be drafted that the vocabulary has tokens for."""
        shape.check_vocabulary(self._vocabulary)

    def build(
        self, teacher: Teacher, backend: Backend, shape: TreeShape, *, slots: int, positions: int
    ) -> NgramDrafter:
        """See ``base.Blueprint``."""
        indexes = [SuffixIndex(*self._lengths) for _ in range(teacher.cache.shape[0])]
        return NgramDrafter(shape.depth, shape.branch, indexes)
