"""A drafter of chosen skill: it proposes the teacher's own continuation, right with a set probability.

For performance work without a trained head. A head of random weights runs in full, so that a cycle costs
what it would cost with a trained one; only the tokens it proposes are replaced. Whatever it produces is
marked ``synthetic``: acceptance measured with it says nothing about any head.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops

from ms_eagle.config.sections import Config
from ms_eagle.drafters.base import Needs
from ms_eagle.drafters.eagle3 import blueprint
from ms_eagle.drafters.eagle3.drafter import Eagle3Drafter
from ms_eagle.drafters.eagle3.head import DraftHead
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.shape import TreeShape

_FIRST = 0.99  # probability that a first child claims, right or wrong
_SEED = 20260  # of the coins: a run can be repeated


def toss(positions: int, acceptance: float) -> np.ndarray:
    """A coin for every absolute position, int32 0 or 1: whether it is drafted right. The same every time."""
    return (np.random.default_rng(_SEED).random(positions) < acceptance).astype(np.int32)


class ScriptedDrafter(Eagle3Drafter):
    """Runs the head, then proposes from a script: the first child of a node is right if its coin says so.

    All other children are tokens that the teacher does not choose there. The hint is, for each of the next D
    positions, the first child of a node there, ``[B, D]`` int32.
    """

    scripted = True

    def __init__(
        self,
        head: DraftHead,
        depth: int,
        branch: int,
        vocab_size: int,
        coins: np.ndarray,
        best: nn.Cell | None = None,
    ) -> None:
        """Draft with ``head`` of random weights.

        Args:
            head, depth, branch, best: as for ``Eagle3Drafter``.
            vocab_size: V.
            coins: see ``toss``.
        """
        super().__init__(head, depth, branch, best)
        self.needs = Needs(head.taps, hints=True)
        self.vocab_size, self.coins = vocab_size, coins
        # Scores only steer the tree: along first children to its full depth, whatever the acceptance.
        others = (1 - _FIRST) / max(1, branch - 1)
        scores = np.log(np.array([_FIRST] + [others] * (branch - 1), np.float32))
        self.scores = Tensor(scores.reshape(1, 1, branch))
        self.offsets = Tensor(np.arange(branch, dtype=np.int32).reshape(1, 1, branch))

    def children(self, hidden: Tensor, depth: int, hints: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The head's work, and the script's tokens, ``[B, R, k]``; see the class."""
        _, spent = self.best(hidden)
        batch, rows, k = spent.shape
        first = hints[0][:, depth - 1 : depth].reshape(batch, 1, 1)
        tokens = ops.broadcast_to((first + self.offsets) % self.vocab_size, (batch, rows, k))
        # `spent * 0` keeps the head's part of the graph alive; its value is finite or the run is at fault.
        return tokens, spent * 0 + self.scores

    def hints(
        self, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """The script's tokens after each sequence, each the wrong one where its coin says so."""
        first = np.zeros((len(sequences), self.depth), np.int32)
        for row, (sequence, script) in enumerate(zip(sequences, scripts, strict=True)):
            n = len(sequence)
            right = script[n : n + self.depth]
            first[row, : len(right)] = right
            coins = self.coins[n : n + self.depth]
            first[row, : len(coins)] += 1 - coins
        return (first,)

    def resized(self, depth: int, branch: int) -> "ScriptedDrafter":
        """The same script, for trees of another size."""
        best = self.best if branch == self.branch else None
        return ScriptedDrafter(self.head, depth, branch, self.vocab_size, self.coins, best)


class ScriptedBlueprint:
    """See ``base.Blueprint``."""

    files: tuple = ()

    def __init__(self, config: Config, decoder: DecoderConfig) -> None:
        """Take the section ``drafter``.

        Raises:
            UserError: see ``random_head``.
        """
        self._head = blueprint.random(config, decoder)
        self._acceptance, self._vocabulary = config.drafter.acceptance, decoder.vocab_size
        self.needs = Needs(self._head.needs.taps, hints=True)

    def check(self, shape: TreeShape) -> None:
        """See ``base.Blueprint``."""
        self._head.check(shape)

    def build(
        self, teacher: Teacher, backend: Backend, shape: TreeShape, *, slots: int, positions: int
    ) -> ScriptedDrafter:
        """See ``base.Blueprint``."""
        drafter = self._head.build(teacher, backend, shape, slots=slots, positions=positions)
        coins = toss(teacher.positions, self._acceptance)
        return ScriptedDrafter(drafter.head, shape.depth, shape.branch, self._vocabulary, coins, drafter.best)
