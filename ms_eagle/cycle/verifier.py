"""The teacher's word on a batch of rows: one forward, then one choice per row, all on the device."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.models.teacher import Teacher


class GreedyChoice(nn.Cell):
    """The most likely token of each row, the lowest id where several are."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(
        self, hidden: Tensor, paths: Tensor, positions: Tensor, params: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Hidden states ``[B, N, E] ->`` as `SampledChoice`, which the other arguments are for."""
        choices, fault = self.teacher.greedy(hidden)
        # With an input that no operator reads, MindSpore's CPU runtime takes 3 ms more for every call.
        return ops.depend(choices, ops.cat((params, uniforms), 1)), fault

    def remember(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Greedy choice has no memory: hands ``tokens`` back."""
        return tokens


class SampledChoice(nn.Cell):
    """A seeded sample for each row after every sampling option; rows of temperature 0 take the argmax.

    Remembers, for the repetition penalty, which tokens a sequence has: Parameter ``seen``, ``[B, V]``.
    """

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher, self.choice = teacher, teacher.choice
        shape = (teacher.cache.shape[0], teacher.vocab_size)
        self.seen = Parameter(ops.zeros(shape, ms.bool_), name="seen", requires_grad=False)

    def see_only(self, sequences: Sequence[Sequence[int]]) -> None:
        """Forget everything and take note of the tokens of B new sequences (on the host)."""
        seen = np.zeros(self.seen.shape, bool)
        for row, sequence in enumerate(sequences):
            seen[row, list(sequence)] = True
        self.seen.set_data(Tensor(seen))

    def construct(
        self, hidden: Tensor, paths: Tensor, positions: Tensor, params: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Choose the token that follows each row.

        Args:
            hidden: ``[B, N, E]``, the teacher's.
            paths: ``[B, D+1, N]`` int32: the tokens of each row and its ancestors, which count as seen.
            positions: ``[B, N]`` int32, the rows' absolute positions.
            params: ``[B, 15]`` float32, see ``sampling.params_tensor``.
            uniforms: ``[B, P]`` float32, the uniform of every absolute position.

        Returns:
            choices ``[B, N]`` int32, and whether any logit of a sequence is NaN or infinite, ``[B]`` bool.
        """
        logits = self.teacher.logits(hidden)
        return self.choice.sample(logits, self.seen, paths, positions, params, uniforms)

    def remember(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Take note of the first ``count`` ``[B]`` of the emitted tokens ``[B, T]``; hand them back."""
        return self.choice.remember(self.seen, tokens, count)


class Verifier(nn.Cell):
    """One teacher forward over N rows and the teacher's choice after each of them."""

    def __init__(self, teacher: Teacher, choose: nn.Cell) -> None:
        super().__init__()
        self.teacher = teacher
        self.choose = choose

    def construct(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        seen: Tensor,
        paths: Tensor,
        params: Tensor,
        uniforms: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Verify; the first four arguments are ``Teacher``'s, the others `SampledChoice`'s.

        Returns:
            choices ``[B, N]`` int32, taps ``[B, N, ...]``, and whether any logit of a sequence is NaN or
            infinite, ``[B]`` bool.
        """
        hidden, taps = self.teacher(tokens, positions, slots, seen)
        choices, fault = self.choose(hidden, paths, positions, params, uniforms)
        return choices, taps, fault
