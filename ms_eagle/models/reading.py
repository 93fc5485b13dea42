"""The teacher's logits after given tokens, as a graph of its own."""

from mindspore import Tensor, nn

from ms_eagle.models.teacher import Teacher


class RowLogits(nn.Cell):
    """Runs consecutive tokens, whose K and V it writes, and returns every row's logits."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(self, tokens: Tensor, start: Tensor, count: Tensor) -> Tensor:
        """Run ``count`` tokens of each sequence.

        Args:
            tokens: ``[B, T]`` int32.
            start: ``[B]`` int32, the committed length before them.
            count: ``[B]`` int32 in ``0..T``; 0 leaves a sequence alone. Logits of further rows are arbitrary.

        Returns:
            float32 ``[B, T, V]``.
        """
        hidden, _ = self.teacher(tokens, *self.teacher.steps.chunk_rows(tokens, start, count))
        return self.teacher.logits(hidden)
