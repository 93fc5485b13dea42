"""How certain the teacher was where two answers part: a near tie of its logits, or a real fault."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.cycle.cycle import TeacherCycle
from ms_eagle.cycle.graphs import TeacherGraphs
from ms_eagle.cycle.verifier import Verifier
from ms_eagle.models.teacher import Teacher
from ms_eagle.sampling.choice import argmax


class MarginChoice(nn.Cell):
    """Greedy choice that keeps, of each sequence, the largest logit minus the second largest.

    The Parameter ``gaps``, ``[B]`` float32, holds those of the last call's first row.
    """

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher
        self.gaps = Parameter(ops.zeros((teacher.cache.shape[0],)), name="gaps", requires_grad=False)

    def construct(
        self, hidden: Tensor, paths: Tensor, positions: Tensor, params: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As ``verifier.GreedyChoice``, which says what the other arguments are for."""
        logits = self.teacher.logits(hidden)
        batch, rows, size = logits.shape
        best, largest = argmax(logits)
        is_best = ops.arange(size).astype(ms.int32).reshape(1, 1, size) == best.reshape(batch, rows, 1)
        _, second = argmax(ops.select(is_best, ops.full_like(logits, -3e38), logits))
        self.gaps = (largest - second).reshape(batch, rows)[:, 0]
        return self.teacher.greedy(hidden)

    def remember(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """Hands ``tokens`` back."""
        return tokens


class MarginGraphs(TeacherGraphs):
    """The teacher alone, with a cycle that measures the margin of its choice."""

    def __init__(self, teacher: Teacher, *, chunk: int, capacity: int, kernels: str) -> None:
        super().__init__(teacher, chunk=chunk, capacity=capacity, kernels=kernels)
        self._choice = MarginChoice(teacher)
        self._measured = TeacherCycle(Verifier(teacher, self._choice))

    def cycle(self, greedy: bool) -> nn.Cell:
        """The measuring cycle, which is greedy."""
        return self._measured

    def last(self) -> float:
        """The margin of the last choice of the first sequence."""
        return float(self._choice.gaps.asnumpy()[0])
