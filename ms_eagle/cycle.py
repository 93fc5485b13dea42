"""One decoding cycle as one graph: everything between the root going in and the emitted tokens coming out."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.masks import row_slots, tree_mask
from ms_eagle.verifier import Verifier


class TeacherCycle(nn.Cell):
    """The cycle without a drafter: a tree that is only its root, so one token a cycle."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__()
        self.verifier = verifier
        self.slots = verifier.teacher.cache.shape[2]

    def construct(
        self, root: Tensor, n: Tensor, active: Tensor, params: Tensor, uniforms: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run one cycle.

        Args:
            root: ``[B]`` int32, the last emitted token, whose KV is not in the cache.
            n: ``[B]`` int32, the committed length.
            active: ``[B]`` bool; a sequence that is not active changes the trash slot only.
            params: ``[B, 5]``, uniforms: ``[B, P]``: see ``verifier.SampledChoice``.
            state: handed through unchanged.

        Returns:
            the report ``[B, 3]`` int32 (count, fault, token), and the state.
        """
        batch = root.shape[0]
        tokens, positions, valid = root.reshape(batch, 1), n.reshape(batch, 1), active.reshape(batch, 1)
        alone = ops.zeros((batch, 1, 1), ms.int32)  # the ancestor table of a lone root
        slots = row_slots(n, valid, self.slots - 1)
        mask = tree_mask(n, alone, valid, self.slots)
        paths = tokens.reshape(batch, 1, 1)
        choices, _, fault = self.verifier(tokens, positions, slots, mask, paths, params, uniforms)
        emitted = self.verifier.choose.remember(choices, valid)
        return report(active.astype(ms.int32), fault, emitted), state


def report(count: Tensor, fault: Tensor, emitted: Tensor) -> Tensor:
    """Pack ``[B]``, ``[B]`` and ``[B, T]`` into the one int32 tensor ``[B, 2 + T]`` the host reads."""
    batch = count.shape[0]
    columns = (count.reshape(batch, 1), fault.astype(ms.int32).reshape(batch, 1), emitted)
    return ops.cat(columns, 1)
