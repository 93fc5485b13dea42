"""A drafter of chosen skill: it proposes the teacher's own continuation, right with a set probability.

For performance work without a trained head. A head of random weights runs in full, so that a cycle costs
what it would cost with a trained one; only the tokens it proposes are replaced. Whatever it produces is
marked ``synthetic``: acceptance measured with it says nothing about any head.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from ms_eagle.architecture import DecoderConfig
from ms_eagle.drafter import Drafter
from ms_eagle.engine import Engine, OnText
from ms_eagle.errors import UserError
from ms_eagle.generation import Completion, GenerationOptions
from ms_eagle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.head_checkpoint import Head
from ms_eagle.head_config import HeadConfig
from ms_eagle.proposer import Eagle3Proposer
from ms_eagle.tree import TreeShape

_DRAFT_VOCABULARY = 8192
_SEED = 20260  # of the coins and the random head: a run can be repeated


def random_head(decoder: DecoderConfig, taps: Sequence[int] | None) -> Head:
    """A one-layer head of the teacher's own sizes with random weights and a vocabulary of up to 8192.

    Raises:
        UserError: the teacher has too few layers for the default taps and none are given.
    """
    chosen = tuple(taps) if taps is not None else decoder.default_taps
    if chosen is None or max(chosen) >= decoder.num_layers:
        raise UserError(
            f"drafter.taps: the teacher has {decoder.num_layers} layers; name blocks below that number, such "
            "as drafter.taps=[0,1]."
        )
    vocabulary = min(_DRAFT_VOCABULARY, decoder.vocab_size)
    config = HeadConfig(
        format="random",
        hidden_size=decoder.hidden_size,
        target_hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        num_layers=1,
        vocab_size=decoder.vocab_size,
        draft_vocab_size=vocabulary,
        rms_norm_eps=decoder.rms_norm_eps,
        rope=decoder.rope,
        taps=chosen,
        fc_norm=False,
        norm_before_fc=False,
        norm_before_residual=False,
        norm_output=False,
        fc_bias=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        own_embedding=False,
        shares_lm_head=False,
        hidden_act="silu",
        notes=("a head of random weights",),
    )
    rng = np.random.default_rng(_SEED)
    tensors = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        for name, shape in config.tensor_shapes().items()
    }
    ids = np.sort(rng.choice(decoder.vocab_size, vocabulary, replace=False)).astype(np.int32)
    return Head(config, tensors, ids, {})


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
        coins = np.random.default_rng(_SEED).random(positions) < acceptance
        self.coins = Parameter(Tensor(coins.astype(np.int32)), name="coins", requires_grad=False)
        probability = min(max(acceptance, 0.01), 0.99)  # scores only steer which path the tree follows
        others = (1 - probability) / max(1, self.branch - 1)
        scores = np.log(np.array([probability] + [others] * (self.branch - 1), np.float32))
        self.scores = Tensor(scores.reshape(1, 1, self.branch))
        self.steps = Tensor(np.arange(self.branch, dtype=np.int32).reshape(1, 1, self.branch))

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
        tokens = ops.broadcast_to((right + wrong + self.steps) % self.vocab_size, (batch, rows, k))
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

    def _generate_group(
        self,
        prompts: Sequence[Sequence[int]],
        options: Sequence[GenerationOptions],
        on_text: OnText | None,
        reuse_prefix: bool,
    ) -> list[Completion]:
        rehearsal = self._teacher.generate(prompts, options)
        scripts = [[*p, *c.token_ids] for p, c in zip(prompts, rehearsal, strict=True)]
        self.graphs.proposer.follow(scripts)
        # The rehearsal went through the same caches: nothing in them is this engine's.
        self._cached = [[] for _ in self._cached]
        return super()._generate_group(prompts, options, on_text, reuse_prefix)
