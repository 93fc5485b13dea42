"""Reading the prompt: one chunk of a fixed size through the teacher; ``windows`` cuts prompts into them."""

from mindspore import Tensor, nn

from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.models.teacher import Teacher


class TeacherPrefill(nn.Cell):
    """Writes K and V of up to C prompt tokens per sequence; the same graph for every chunk."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher
        self.slots = teacher.cache.shape[2]

    def construct(self, window: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Read one chunk.

        Args:
            window: ``[B, C + 1]`` int32: the chunk and the token after it, which only a drafter needs;
                beyond ``count`` any ids of the vocabulary.
            start: ``[B]`` int32, the committed length before the chunk.
            count: ``[B]`` int32, how many of the C rows hold tokens; 0 leaves a sequence alone.
            state: handed through unchanged.

        Returns:
            the state.
        """
        tokens = window[:, : window.shape[1] - 1]
        self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count))
        return state


class EaglePrefill(nn.Cell):
    """Reads a chunk into the teacher's cache and, with the taps it gave, into the drafter's."""

    def __init__(self, teacher: Teacher, proposer: Eagle3Proposer) -> None:
        super().__init__()
        self.teacher, self.proposer = teacher, proposer
        self.slots = teacher.cache.shape[2]

    def construct(self, window: Tensor, start: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Read one chunk, as ``TeacherPrefill``; returns the drafter's new state, ``[B, E]``."""
        rows = window.shape[1] - 1
        tokens, following = window[:, :rows], window[:, 1 : rows + 1]
        _, taps = self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count))
        return self.proposer.extend(taps, following, start, count, state)
