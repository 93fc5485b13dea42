"""What a head is trained towards, and how its drafts are judged."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.training.unroll import Unroll


class Objective(nn.Cell):
    """Soft cross-entropy to the teacher's distribution over the draft vocabulary, summed over the steps.

    Step ``s`` weighs ``decay ** s`` (EAGLE-3, arXiv 2503.01840, appendix) and is a mean over the rows that
    count in it.
    """

    def __init__(self, unroll: Unroll, teacher_rows: Tensor, decay: float) -> None:
        """Take the head and the teacher's LM head rows of the draft vocabulary, ``[V_d, E]``."""
        super().__init__()
        self.unroll = unroll
        self.teacher_rows = teacher_rows
        self.decay = decay
        self.multiply = ops.MatMul(transpose_b=True)

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
    ) -> tuple[Tensor, Tensor]:
        """Loss of one batch.

        Args:
            taps, tokens, segments, positions, rows, step_tokens: see ``Unroll``.
            final: ``[B * Q, E]`` float16 or float32: the teacher's last hidden states, normed, one position
                after each query; step ``s`` finds its own ``s`` queries further on.
            labels: ``[S, B * Q]`` int32, the teacher's choice as a draft id; V_d where there is none:
                such rows are left out of the loss.
            weights: ``[S, B * Q]`` float32: 1 where a row is judged in a step, else 0.

        Returns:
            the loss, ``[]``, and for each step the share of judged rows whose argmax is the label, ``[S]``.
        """
        states = self.unroll(taps, tokens, segments, positions, rows, step_tokens)
        target = self.multiply(final.astype(ms.float32), self.teacher_rows)
        target = ops.stop_gradient(ops.softmax(target, 1))  # [B * Q, V_d]
        count, width = target.shape
        loss, hits = 0.0, ()
        for step in range(len(states)):
            # The last rows have no target so far ahead; their weight is 0 in any case.
            kept = count - step
            state = states[step].reshape(count, states[step].shape[2])[:kept]
            logits = self.unroll.logits(state)
            judged, label = weights[step, :kept], labels[step, :kept]
            counts = judged * (label < width).astype(ms.float32)
            cross = -(target[step:] * ops.log_softmax(logits, 1)).sum(1)
            loss = loss + self.decay**step * (cross * counts).sum() / ops.maximum(counts.sum(), 1.0)
            choice, _ = ops.ArgMaxWithValue(axis=1)(ops.stop_gradient(logits))
            hit = (choice.astype(ms.int32) == label).astype(ms.float32)
            hits = (*hits, (hit * judged).sum() / ops.maximum(judged.sum(), 1.0))
        return loss, ops.stack(hits)


class Chain(nn.Cell):
    """How far a greedy chain of drafts follows the teacher."""

    def __init__(self, unroll: Unroll) -> None:
        super().__init__()
        self.unroll = unroll

    def construct(
        self,
        taps: Tensor,
        tokens: Tensor,
        segments: Tensor,
        positions: Tensor,
        rows: Tensor,
        step_tokens: Tensor,
        labels: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """Count matches.

        Args:
            taps, tokens, segments, positions, rows, step_tokens: see ``Unroll``.
            labels: ``[S, B * Q]`` int32, the teacher's choice as a draft id, V_d where it has none.
            weights: ``[B * Q]`` float32, 1 for a row that is judged.

        Returns:
            ``[S + 1]`` float32: rows judged, then those whose first ``s`` drafts all match.
        """
        states = self.unroll(taps, tokens, segments, positions, rows, step_tokens)
        alive, counts = weights, (weights.sum(),)
        for step in range(len(states)):
            state = states[step]
            logits = self.unroll.logits(state.reshape(weights.shape[0], state.shape[2]))
            choice, _ = ops.ArgMaxWithValue(axis=1)(logits)
            alive = alive * (choice.astype(ms.int32) == labels[step]).astype(ms.float32)
            counts = (*counts, alive.sum())
        return ops.stack(counts)
