"""The compiled Cells that the host loop drives, together with their fixed shapes."""

from collections.abc import Sequence

from mindspore import Tensor, nn, ops

from ms_eagle.cycle import TeacherCycle
from ms_eagle.prefill import TeacherPrefill
from ms_eagle.teacher import Teacher
from ms_eagle.verifier import GreedyChoice, SampledChoice, Verifier


class TeacherGraphs:
    """Teacher-only decoding; the protocol is ``engine.Graphs``."""

    drafter = "none"
    mode = "performance"

    def __init__(self, teacher: Teacher, *, chunk: int, capacity: int, kernels: str) -> None:
        """Make the Cells; nothing compiles before its first call.

        Args:
            teacher: with caches of at least ``capacity + 2`` slots.
            chunk: C, prompt tokens a prefill call reads.
            capacity: most tokens of a sequence.
            kernels: name of the teacher's attention kernel, for reports.
        """
        self.teacher, self.kernels = teacher, kernels
        self.batch, self.positions = teacher.cache.shape[0], teacher.cache.shape[2]
        self.chunk, self.capacity, self.vocab_size = chunk, capacity, teacher.vocab_size
        self._prefill = TeacherPrefill(teacher)
        self._sampled = SampledChoice(self.batch, self.vocab_size)
        self._cycles: dict[bool, nn.Cell] = {
            True: TeacherCycle(Verifier(teacher, GreedyChoice())),
            False: TeacherCycle(Verifier(teacher, self._sampled)),
        }

    def prefill(self) -> nn.Cell:
        """The Cell that reads a chunk."""
        return self._prefill

    def cycle(self, greedy: bool) -> nn.Cell:
        """The Cell of one cycle: argmax only, or with every sampling option."""
        return self._cycles[greedy]

    def initial_state(self) -> Tensor:
        """Teacher-only decoding carries nothing from call to call."""
        return ops.zeros((self.batch, 1))

    def start_request(self, sequences: Sequence[Sequence[int]]) -> None:
        """Let the repetition penalty know the prompts."""
        self._sampled.see_only(sequences)
