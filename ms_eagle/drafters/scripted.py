"""A drafter of chosen skill: it proposes the teacher's own continuation, right with a set probability.

For performance work without a trained head. A head of random weights runs in full, so that a cycle costs
what it would cost with a trained one; only the tokens it proposes are replaced. Whatever it produces is
marked ``synthetic``: acceptance measured with it says nothing about any head.
"""

from collections.abc import Sequence
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from ms_eagle.cycle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.drafters.eagle3.head import Drafter
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.engine.engine import Engine, OnText, OnTokens
from ms_eagle.engine.requests import Completion, GenerationOptions
from ms_eagle.tree.growth import TreeShape

_FIRST = 0.99  # probability that a first child claims, right or wrong
_SEED = 20260  # of the coins: a run can be repeated


def toss(positions: int, acceptance: float) -> np.ndarray:
    """A coin for every absolute position, int32 0 or 1: whether it is drafted right. The same every time."""
    return (np.random.default_rng(_SEED).random(positions) < acceptance).astype(np.int32)


class SyntheticProposer(Eagle3Proposer):
    """Runs the head, then proposes from a script: the first child of a node is right if its coin says so.

    The script, ``[B, P]`` int32, holds the teacher's token at every absolute position. All other children
    are tokens that the teacher does not choose there.
    """

    def __init__(
        self, drafter: Drafter, shape: TreeShape, vocab_size: int, positions: int, acceptance: float
    ) -> None:
        super().__init__(drafter, shape)
        batch = drafter.cache.shape[0]
        self.vocab_size, self.positions = vocab_size, positions
        self.script = Parameter(ops.zeros((batch, positions), ms.int32), name="script", requires_grad=False)
        self.coins = Parameter(Tensor(toss(positions, acceptance)), name="coins", requires_grad=False)
        # Scores only steer the tree: along first children to its full depth, whatever the acceptance.
        others = (1 - _FIRST) / max(1, self.branch - 1)
        scores = np.log(np.array([_FIRST] + [others] * (self.branch - 1), np.float32))
        self.scores = Tensor(scores.reshape(1, 1, self.branch))
        self.offsets = Tensor(np.arange(self.branch, dtype=np.int32).reshape(1, 1, self.branch))

    def follow(self, scripts: Sequence[Sequence[int]]) -> None:
        """Set the script of B sequences (on the host): prompt and continuation, from position 0 on."""
        table = np.zeros(self.script.shape, np.int32)
        for row, tokens in enumerate(scripts):
            part = tokens[: self.positions]
            table[row, : len(part)] = part
        self.script.set_data(Tensor(table))

    def children(self, hidden: Tensor, n: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The head's work, and the script's tokens, ``[B, R, k]``; see the class."""
        _, spent = super().children(hidden, n, depth)
        batch, rows, k = spent.shape
        place = ops.clamp(n + depth, max=self.positions - 1)
        right = ops.gather_d(self.script, 1, place.reshape(batch, 1)).reshape(batch, 1, 1)
        wrong = 1 - ops.gather(self.coins, place, 0).reshape(batch, 1, 1)  # 0: the first child is right
        tokens = ops.broadcast_to((right + wrong + self.offsets) % self.vocab_size, (batch, rows, k))
        # `spent * 0` keeps the head's part of the graph alive; its value is finite or the run is at fault.
        return tokens, spent * 0 + self.scores


class SyntheticEngine(Engine):
    """Lets the teacher answer alone first, and then drafts from what it said."""

    def __init__(self, graphs: EagleGraphs, *arguments: object, **named: object) -> None:
        super().__init__(graphs, *arguments, **named)
        alone = TeacherGraphs(
            graphs.teacher, chunk=graphs.chunk, capacity=graphs.capacity, kernels=graphs.kernels
        )
        self._teacher = Engine(alone, *arguments, **named)

    def _warm_up(self, options: Sequence[GenerationOptions]) -> None:
        self._teacher._warm_up(options)
        super()._warm_up(options)

    def _generate_group(
        self,
        prompts: Sequence[Sequence[int]],
        options: Sequence[GenerationOptions],
        on_text: OnText | None,
        on_tokens: OnTokens | None,
        reuse_prefix: bool,
    ) -> list[Completion]:
        rehearsal = self._teacher.generate(prompts, options)
        if any(completion.finish_reason == "interrupted" for completion in rehearsal):
            return [self._unsaid(completion) for completion in rehearsal]
        scripts = [[*p, *c.token_ids] for p, c in zip(prompts, rehearsal, strict=True)]
        self.graphs.proposer.follow(scripts)
        # The rehearsal went through the same caches: nothing in them is this engine's.
        self._cached = [[] for _ in self._cached]
        return super()._generate_group(prompts, options, on_text, on_tokens, reuse_prefix)

    def _unsaid(self, rehearsed: Completion) -> Completion:
        """The empty answer where Ctrl-C ended the rehearsal: nothing was drafted or shown."""
        self._cached = [[] for _ in self._cached]
        return replace(
            rehearsed,
            text="",
            token_ids=(),
            finish_reason="interrupted",
            drafter=self.graphs.drafter,
            cycles=0,
            accept_L=(),
            time_to_first_token=None,
            tokens_per_second=None,
        )
