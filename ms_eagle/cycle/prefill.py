"""Reading the prompt: one chunk of a fixed size through the teacher, and its taps to the drafter."""

from mindspore import Tensor, nn

from ms_eagle.drafters.base import Drafter
from ms_eagle.models.teacher import Teacher


class Prefill(nn.Cell):
    """Reads up to C prompt tokens per sequence; the same graph for every chunk and every tier."""

    def __init__(self, teacher: Teacher, drafter: Drafter) -> None:
        super().__init__()
        self.teacher, self.drafter = teacher, drafter

    def construct(self, window: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Read one chunk.

        Args:
            window: ``[B, C + 1]`` int32: the chunk and the token after it, which only a drafter needs;
                beyond ``count`` any ids of the vocabulary.
            start: ``[B]`` int32, the committed length before the chunk.
            count: ``[B]`` int32, how many of the C rows hold tokens; 0 leaves a sequence alone.
            state: the drafter's.

        Returns:
            the drafter's new state.
        """
        tokens = window[:, : window.shape[1] - 1]
        _, taps = self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count))
        return self.drafter.read(window, taps, start, count, state)
