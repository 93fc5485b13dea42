"""What a decoder is made of, behind one interface, so that teacher and drafter are written once.

A ``Backend`` makes Cells from checkpoint tensors: ``backends.stock`` from MindSpore operators, on any device;
``backends.native`` from our own CPU kernels. Both give the same tokens.

``seen`` says what rows see in the form that the backend's layers take: a mask ``[B, 1, N, S]`` bool,
True = discard, or lists of slots ``[B, N, 2 + X]`` int32 (``kernels.native``).
"""

from dataclasses import dataclass
from typing import Protocol

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from ms_eagle.models.architecture import LayerConfig
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.weight import Read, Weight
from ms_eagle.tree.growth import Beam, Pool
from ms_eagle.tree.masks import Rows
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import Tree


@dataclass(frozen=True)
class Formats:
    """The number formats that a backend works in.

    Attributes:
        weights: of matrices in memory.
        activations: of what flows from layer to layer; norms, softmax and rotation work in float32.
        kv: of the caches.
    """

    weights: ms.Type
    activations: ms.Type
    kv: ms.Type

    @classmethod
    def uniform(cls, dtype: ms.Type) -> "Formats":
        """One format for everything."""
        return cls(dtype, dtype, dtype)


@dataclass(frozen=True)
class LayerNames:
    """Where the tensors of one layer stand in a checkpoint: prefixes that end in a dot."""

    attention_norm: str
    attention: str
    mlp_norm: str
    mlp: str


class Vocabulary(Protocol):
    """A matrix ``[V, E]`` for looking tokens up and for scoring them."""

    def embed(self, tokens: Tensor) -> Tensor:
        """int32 ``[B, N]`` in ``[0, V) -> [B, N, E]``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[B, N, E] ->`` float32 ``[B, N, V]``."""
        ...

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest id of the largest logit, int32 ``[B, N]``, and ``[B]`` bool: one is NaN or infinite."""
        ...


class Choice(Protocol):
    """Sampling. A row's choice depends on its own logits, options and uniform alone (``sampling.choice``)."""

    def sample(
        self,
        logits: Tensor,
        seen: Parameter,
        paths: Tensor,
        positions: Tensor,
        params: Tensor,
        uniforms: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Choose the token that follows each row.

        Args:
            logits: float32 ``[B, N, V]``.
            seen: bool ``[B, V]``, tokens that the sequences hold.
            paths: int32 ``[B, D+1, N]``, tokens of each row and its ancestors, which count as seen.
            positions: int32 ``[B, N]``, the rows' absolute positions.
            params: float32 ``[B, 15]``, see ``sampling.params_tensor``.
            uniforms: float32 ``[B, P]``, the uniform of every absolute position.

        Returns:
            int32 ``[B, N]``, and ``[B]`` bool: a logit of the sequence is NaN or infinite.
        """
        ...

    def remember(self, seen: Parameter, tokens: Tensor, count: Tensor) -> Tensor:
        """Add the first ``count`` ``[B]`` of ``tokens`` ``[B, T]`` to ``seen``, which is written.

        Returns:
            the tokens.
        """
        ...


class Steps(Protocol):
    """The steps of a cycle between its forwards, over a cache of S slots: whole numbers and comparisons."""

    def tensorizer(self, shape: TreeShape, log_confidence: float) -> nn.Cell:
        """A Cell that lays out the best candidates of a pool as the rows of a tree batch.

        It is called ``(*pool, n, active)`` and returns the ``Tree``, its ``Rows``, and the tokens along each
        row's path, int32 ``[B, D+1, N]``. Idle sequences have no valid row, those with ``n = 0`` only the
        root: their drafter has read nothing.

        Args:
            shape: of every tree.
            log_confidence: see ``tree.tensorize``.
        """
        ...

    def chunk_rows(self, tokens: Tensor, start: Tensor, count: Tensor) -> Rows:
        """Rows of a chunk of consecutive tokens; see ``tree.masks.chunk_rows``.

        Args:
            tokens: ``[B, T]``, for its shape.
            start: ``[B]`` int32, slot and position of the first.
            count: ``[B]`` int32 in ``0..T``, how many there are.
        """
        ...

    def level_rows(self, start: Tensor, active: Tensor, lineage: Tensor) -> Rows:
        """Rows of a drafter's level, which follows those before it.

        Args:
            start: ``[B]`` int32, the committed length.
            active: ``[B]`` bool; other sequences write to the trash slot.
            lineage: ``[B, l, k]`` int32, see ``tree.growth.Beam``.
        """
        ...

    def tree_rows(
        self, tokens: Tensor, depths: Tensor, valid: Tensor, ancestors: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of a tree, and the tokens along each row's path.

        Args:
            tokens: ``[B, N]`` int32; depths: ``[B, N]`` int32; valid: ``[B, N]`` bool.
            ancestors: ``[B, D+1, N]`` int32.
            start: ``[B]`` int32.

        Returns:
            ``Rows`` and ``[B, D+1, N]`` int32.
        """
        ...

    def grow_root(self, root: Tensor, tokens: Tensor, log_probs: Tensor) -> tuple[Pool, Beam, Tensor]:
        """``tree.growth.grow_root`` with ``tokens`` and ``log_probs`` ``[B, 1, k]``."""
        ...

    def grow_level(
        self, pool: Pool, beam: Beam, tokens: Tensor, log_probs: Tensor
    ) -> tuple[Pool, Beam, Tensor]:
        """``tree.growth.grow_level``."""
        ...

    def accept(self, tree: Tree, choices: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``tree.accept.accept``."""
        ...

    def moves(self, path: Tensor, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """``tree.accept.path_slots`` in this cache."""
        ...

    def pick(self, x: Tensor, which: Tensor) -> Tensor:
        """Rows of each sequence: ``[B, R, E]`` by ``[B, N]`` int32 in ``[0, R) -> [B, N, E]``."""
        ...

    def last_row(self, x: Tensor, count: Tensor, state: Tensor) -> Tensor:
        """Row ``count - 1`` of ``[B, R, E]``, or ``state`` ``[B, E]`` where ``count`` ``[B]`` is 0."""
        ...

    def report(self, count: Tensor, fault: Tensor, broken: Tensor, start: Tensor, emitted: Tensor) -> Tensor:
        """What the host reads after a cycle.

        Args:
            count: ``[B]`` int32, tokens emitted.
            fault: ``[B]`` bool, the teacher's logits are not finite.
            broken: ``[B]`` bool, the drafter's; of no account where ``start`` ``[B]`` is 0.
            emitted: ``[B, T]`` int32.

        Returns:
            ``[B, 2 + T]`` int32: count, fault code (``tree.report``), tokens.
        """
        ...


class Backend(Protocol):
    """Makes the Cells of teacher and drafter.

    Attributes:
        name: of the kernels: ``eager``, ``fused`` or ``native``.
        formats: of numbers.
        codes: whether quantised weights are multiplied as they are; if not, their values are.
    """

    name: str
    formats: Formats
    codes: bool

    def steps(self, slots: int) -> Steps:
        """The steps over a cache of ``slots`` slots per sequence; a Cell."""
        ...

    def rows(self, rope: RopeConfig, positions: int, cache: KVCache) -> nn.Cell:
        """A Cell ``(positions [B,N], slots [B,N], seen) -> rows``, worked out once for all layers.

        Args:
            rope: of the rotation.
            positions: how many the rotary tables cover.
            cache: that the layers write.
        """
        ...

    def layer(
        self,
        config: LayerConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> nn.Cell:
        """A Cell ``(x [B,N,A], residual [B,N,E], rows) -> [B,N,E]``: attention, then MLP.

        Args:
            config: sizes and variants.
            read: returns a checkpoint tensor by its name.
            names: of the layer's tensors.
            cache: its layer ``index`` is written and attended.
            index: a constant.
            normed: the layer norms its own input; else it comes normed.
        """
        ...

    def linear(self, weight: Weight, bias: Weight | None) -> nn.Cell:
        """A Cell ``[B, N, in] -> [B, N, out]``; weight ``[out, in]``."""
        ...

    def norm(self, weight: Weight, eps: float) -> nn.Cell:
        """A Cell: RMSNorm over the last dimension."""
        ...

    def vocabulary(self, weight: Weight) -> Vocabulary:
        """Embedding and LM head over one matrix ``[V, E]``; a Cell."""
        ...

    def pair(
        self,
        vocabulary: Vocabulary,
        input_norm: Weight,
        feature_norm: Weight,
        eps: float,
        *,
        residual_is_normed: bool,
    ) -> nn.Cell:
        """A Cell ``(tokens [B,N], features [B,N,E]) -> x [B,N,A+E], residual [B,N,E]``.

        It is what a drafter's first layer reads: the normed embedding beside the normed feature.

        Args:
            vocabulary: looks the tokens up.
            input_norm: ``[A]``; feature_norm: ``[E]``, weights of the two RMSNorms.
            eps: of both.
            residual_is_normed: the residual is the normed feature, not the feature.
        """
        ...

    def children(self, vocabulary: Vocabulary, norm: nn.Cell, names: Parameter, k: int) -> nn.Cell:
        """A Cell from hidden states ``[B, R, E]`` to the ``k`` best tokens after each row.

        It returns int32 and float32 ``[B, R, k]``: what ``names`` holds for the best columns, and their
        log-probabilities; see ``tree.growth.top_children``.

        Args:
            vocabulary: the LM head.
            norm: of hidden states, a Cell that ``norm`` made.
            names: int32 ``[V]``, a token for each column.
            k: up to V.
        """
        ...

    def choice(self) -> Choice:
        """Sampling; a Cell."""
        ...

    def reorder(self, cache: KVCache) -> nn.Cell:
        """A Cell that commits the accepted path, as ``models.commit.FastReorder`` does."""
        ...

    def settle(self, *cells: nn.Cell) -> None:
        """Put the weights and caches of loaded Cells where they are read fastest."""
        ...
