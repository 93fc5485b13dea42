"""One step of training, and one of evaluation: numpy batches in, numbers out, everything else compiled."""

from collections.abc import Mapping
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.errors import UserError
from ms_eagle.models.layers import parameter
from ms_eagle.training.batches import Batch
from ms_eagle.training.objective import Chain, Objective
from ms_eagle.training.optimizer import Optimizer
from ms_eagle.training.unroll import Unroll


@dataclass(frozen=True)
class StepOptions:
    """How steps are taken.

    Attributes:
        ttt_steps: how often the head is unrolled in training.
        depth: how often in evaluation: the longest chain that is judged.
        step_decay: weight of step ``s`` is this to the power ``s``.
        betas, weight_decay, clip, muon: see ``optimizer.Optimizer``.
        queries: share of a batch's rows that a loss looks at; answers beyond it are left out of the loss.
        ranks: processes that average their gradients.
    """

    ttt_steps: int = 3
    depth: int = 5
    step_decay: float = 0.8
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    muon: bool = False
    queries: float = 0.8
    ranks: int = 1


@dataclass(frozen=True)
class StepReport:
    """Numbers of one step of training.

    Attributes:
        loss: weighted sum over the unrolled steps.
        grad_norm: before clipping; where it is not finite, no weight changed.
        accuracy: for each unrolled step, the share of its rows whose best draft is the teacher's choice.
        positions: rows that counted in the first step.
    """

    loss: float
    grad_norm: float
    accuracy: tuple[float, ...]
    positions: int


class HeadTrainer:
    """A head in training: weights, optimiser and their two compiled graphs."""

    def __init__(
        self,
        config: HeadConfig,
        embedding: np.ndarray,
        lm_head_rows: np.ndarray,
        target_ids: np.ndarray,
        start: Mapping[str, np.ndarray],
        options: StepOptions,
        *,
        length: int,
    ) -> None:
        """Take start weights; a graph compiles at its first call.

        Args:
            config: of the head.
            embedding: the teacher's, float32 ``[V, E]``.
            lm_head_rows: the teacher's LM head rows of the draft vocabulary, float32 ``[V_d, E]``.
            target_ids: int32 ``[V_d]``, the teacher's id of each draft id.
            start: weights by the names of ``config.tensor_shapes()``.
            options: how steps are taken.
            length: T, rows of a packed sequence.

        Raises:
            UserError: the head has an option that is not trained.
        """
        self.options, self._draft_ids = options, draft_ids(len(embedding), target_ids)
        positions = length + max(options.ttt_steps, options.depth)
        unroll = Unroll(config, embedding, start, positions=positions)
        rows = parameter(lm_head_rows, "teacher_rows", ms.float32)
        self._weights = unroll.weights()
        self._optimizer = Optimizer(
            self._weights,
            betas=options.betas,
            decay=options.weight_decay,
            clip=options.clip,
            muon=options.muon,
        )
        objective = Objective(unroll, rows, options.step_decay)
        self._train = _Train(objective, self._optimizer, options.ranks)
        self._chain = Chain(unroll)

    def train(self, batch: Batch, rate: float) -> StepReport:
        """Take one step of size ``rate``; weights are spoilt where the reported loss is not finite."""
        arranged = arrange(batch, self.options.ttt_steps, self.options.queries, self._draft_ids)
        objective = (Tensor(arranged.final), Tensor(arranged.labels), Tensor(arranged.weights))
        loss, norm, accuracy = self._train(*_forward(arranged), *objective, Tensor(rate, ms.float32))
        return StepReport(
            float(loss.asnumpy()),
            float(norm.asnumpy()),
            tuple(accuracy.asnumpy().tolist()),
            int(arranged.weights[0].sum()),
        )

    def evaluate(self, batch: Batch) -> np.ndarray:
        """Draft a greedy chain after every row that has ``depth`` more tokens to come.

        Returns:
            int64 ``[depth + 1]``: rows judged, then those whose first ``d`` drafts are all the teacher's
            choices. Simulated accept length is the sum of the others over the first.
        """
        arranged = arrange(batch, self.options.depth, self.options.queries, self._draft_ids)
        judged = Tensor(arranged.weights[self.options.depth - 1])
        counts = self._chain(*_forward(arranged), Tensor(arranged.labels), judged)
        return np.rint(counts.asnumpy()).astype(np.int64)

    def tensors(self) -> dict[str, np.ndarray]:
        """The weights as they are now, float32 copies by the names of ``HeadConfig.tensor_shapes``."""
        return {name: weight.asnumpy().copy() for name, weight in self._weights.items()}

    def state(self) -> dict[str, np.ndarray]:
        """All that later steps depend on: weights, moments, and how many steps were taken."""
        return {name: each.asnumpy().copy() for name, each in self._everything().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up where ``state()`` was asked for; steps then are the same bit for bit.

        Raises:
            UserError: the state is that of another head.
        """
        parameters = self._everything()
        shapes = {name: tuple(each.shape) for name, each in parameters.items()}
        stored = {name: tuple(array.shape) for name, array in state.items()}
        if stored != shapes:
            odd = sorted(
                name for name in shapes.keys() | stored.keys() if shapes.get(name) != stored.get(name)
            )
            raise UserError(
                f"the training state holds {odd[0]} as {stored.get(odd[0])}; expected {shapes.get(odd[0])}: "
                "it belongs to another configuration."
            )
        for name, parameter_ in parameters.items():
            parameter_.set_data(Tensor(np.array(state[name])))

    def _everything(self) -> dict[str, Parameter]:
        return {**self._optimizer.state(), **self._weights}


@dataclass(frozen=True)
class Arranged:
    """A batch as the graphs take it; see ``unroll.Unroll`` and ``objective.Objective`` for the shapes."""

    taps: np.ndarray
    tokens: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    rows: np.ndarray
    step_tokens: np.ndarray
    final: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def draft_ids(vocabulary: int, target_ids: np.ndarray) -> np.ndarray:
    """The draft id of every token of the teacher, int32 ``[V]``; ``len(target_ids)`` where it has none."""
    ids = np.full(vocabulary, len(target_ids), np.int32)
    ids[target_ids] = np.arange(len(target_ids), dtype=np.int32)
    return ids


def arrange(batch: Batch, steps: int, queries: float, ids: np.ndarray) -> Arranged:
    """Pair features with tokens and targets.

    Row ``i`` pairs feature ``i`` with token ``i + 1``; its step ``s`` predicts token ``i + 2 + s``, which the
    teacher chose from its hidden state at ``i + 1 + s``. A step is judged where that token is an answer's
    and belongs to the row's conversation.

    Args:
        batch: ``[B, T]`` packed conversations.
        steps: S.
        queries: Q as a share of T; the last answers of a row that has more are left out.
        ids: int32 ``[V]``, see ``draft_ids``.
    """
    count, length = batch.tokens.shape
    width = max(1, min(length, round(length * queries)))
    # Row T stands for what lies past the end: no conversation, no answer.
    pad = ((0, 0), (0, steps + 2))
    tokens, segments, answer = (
        np.pad(each, pad) for each in (batch.tokens, batch.segments, batch.answer.astype(bool))
    )
    at = np.arange(length)
    own = segments[:, :length]
    first = answer[:, at + 2] & (segments[:, at + 2] == own) & (own > 0)  # [B, T]
    rows = np.zeros((count, width), np.int32)
    used = np.zeros((count, width), bool)
    for b in range(count):
        chosen = np.flatnonzero(first[b])[:width]
        rows[b, : len(chosen)], used[b, : len(chosen)] = chosen, True
    ahead = rows[:, None, :] + 1 + np.arange(steps, dtype=np.int32)[None, :, None]  # [B, S, Q]
    batches = np.arange(count)[:, None, None]
    labels = ids[tokens[batches, ahead + 1]]
    same = segments[batches, ahead + 1] == own[np.arange(count)[:, None], rows][:, None, :]
    judged = used[:, None, :] & same & answer[batches, ahead + 1]
    for step in range(1, steps):
        # A step's target is the first target of the query `step` further on.
        later = np.zeros((count, width), bool)
        later[:, : width - step] = rows[:, step:] == rows[:, : width - step] + step
        judged[:, step] &= later
    final = batch.final[np.arange(count)[:, None], np.minimum(rows + 1, length - 1)]
    by_step = (1, 0, 2)
    return Arranged(
        batch.taps,
        tokens[:, 1 : length + 1],
        batch.segments,
        batch.positions,
        rows,
        tokens[batches, ahead],
        final.reshape(count * width, final.shape[2]),
        np.ascontiguousarray(labels.transpose(by_step)).reshape(steps, count * width),
        np.ascontiguousarray(judged.transpose(by_step)).reshape(steps, count * width).astype(np.float32),
    )


def _forward(arranged: Arranged) -> tuple[Tensor, ...]:
    names = ("taps", "tokens", "segments", "positions", "rows", "step_tokens")
    return tuple(Tensor(np.ascontiguousarray(getattr(arranged, name))) for name in names)


class _Train(nn.Cell):
    """Loss, gradients and the update of the weights, as one graph."""

    def __init__(self, objective: Objective, optimizer: Optimizer, ranks: int) -> None:
        super().__init__()
        self.objective, self.optimizer, self.ranks = objective, optimizer, ranks
        self.gradients = ops.value_and_grad(objective, None, optimizer.weights, has_aux=True)
        self.sum = ops.AllReduce() if ranks > 1 else None

    def construct(
        self,
        taps: Tensor,
        tokens: Tensor,
        segments: Tensor,
        positions: Tensor,
        rows: Tensor,
        step_tokens: Tensor,
        final: Tensor,
        labels: Tensor,
        weights: Tensor,
        rate: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (loss, hits), gradients = self.gradients(
            taps, tokens, segments, positions, rows, step_tokens, final, labels, weights
        )
        if self.ranks > 1:
            mean = ()
            for gradient in gradients:
                mean = (*mean, self.sum(gradient) / self.ranks)
            gradients = mean
        norm = self.optimizer(gradients, rate)
        return ops.depend(loss, norm), norm, hits
