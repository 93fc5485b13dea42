"""The compiled Cells that the host loop drives, together with their fixed shapes."""

from collections.abc import Callable, Sequence

from mindspore import Tensor, nn, ops

from ms_eagle.cycle.cycle import EagleCycle, TeacherCycle
from ms_eagle.cycle.prefill import EaglePrefill, TeacherPrefill
from ms_eagle.cycle.verifier import GreedyChoice, SampledChoice, Verifier
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.models.commit import FastReorder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.shape import TreeShape, log_confidence


class TeacherGraphs:
    """Teacher-only decoding; the protocol is ``engine.Graphs``."""

    drafter = "none"
    mode = "performance"
    observer = None
    width = 1

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
        self._sampled = SampledChoice(teacher)
        self._cycles: dict[bool, nn.Cell] = {
            True: TeacherCycle(Verifier(teacher, GreedyChoice(teacher))),
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

    def clear(self) -> None:
        """Empty the caches."""
        self.teacher.cache.clear()

    def start_request(self, sequences: Sequence[Sequence[int]]) -> None:
        """Let the repetition penalty know the prompts."""
        self._sampled.see_only(sequences)


class EagleGraphs(TeacherGraphs):
    """Speculative decoding with an EAGLE-3 drafter."""

    def __init__(
        self,
        teacher: Teacher,
        proposer: Eagle3Proposer,
        shape: TreeShape,
        *,
        drafter: str,
        chunk: int,
        capacity: int,
        kernels: str,
        confidence: float = 0.0,
        reorder: Callable[[KVCache], nn.Cell] = FastReorder,
    ) -> None:
        """Make the Cells.

        Args:
            teacher: with taps for the drafter, and caches of at least ``capacity + N + 1`` slots.
            proposer: around a drafter with caches of at least ``capacity + (D-1) k + 1`` slots.
            shape: of the draft tree.
            drafter: its name, for reports.
            chunk, capacity, kernels: as for ``TeacherGraphs``.
            confidence: nodes of a lower cumulative probability become padding.
            reorder: makes the Cell that commits accepted rows, such as a class of ``commit``.
        """
        super().__init__(teacher, chunk=chunk, capacity=capacity, kernels=kernels)
        self.drafter, self.width, self.proposer, self.shape = drafter, shape.depth + 1, proposer, shape
        shape.check_vocabulary(proposer.drafter.draft_vocab_size)
        self._prefill = EaglePrefill(teacher, proposer)
        commit, threshold = reorder(teacher.cache), log_confidence(confidence)
        self._cycles = {
            greedy: EagleCycle(proposer, Verifier(teacher, choose), commit, shape, threshold)
            for greedy, choose in ((True, GreedyChoice(teacher)), (False, self._sampled))
        }

    def initial_state(self) -> Tensor:
        """No feature yet: zeros ``[B, E]``."""
        return ops.zeros((self.batch, self.proposer.drafter.hidden_size), self.proposer.drafter.dtype)

    def clear(self) -> None:
        """Empty the teacher's and the drafter's cache."""
        super().clear()
        self.proposer.drafter.cache.clear()
