"""The EAGLE-3 drafter: a small decoder over the teacher's features (arXiv 2503.01840, section 3).

``head_config`` has the formulas; this file carries them out over a static cache.
"""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.models.backend import Backend, LayerNames, Vocabulary
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.layers import parameter
from ms_eagle.models.quantisation import stored_as
from ms_eagle.models.weight import Read, Weight
from ms_eagle.tree.growth import top_children


class Fuse(nn.Cell):
    """Taps to features: ``fc`` and the norms that may stand before it."""

    def __init__(self, head: Head, backend: Backend) -> None:
        super().__init__()
        config = head.config
        self.width, self.taps = config.target_hidden_size, config.num_taps
        read = _reader(head)
        self.fc = backend.linear(read("fc.weight"), read("fc.bias") if "fc.bias" in head.tensors else None)
        self.before = nn.Identity()
        if config.norm_before_fc:
            self.before = backend.norm(read("input_norm.weight"), config.rms_norm_eps)
        norms = range(config.num_taps) if config.fc_norm else ()
        self.each = nn.CellList(
            [backend.norm(read(f"fc_norm.{i}.weight"), config.rms_norm_eps) for i in norms]
        )

    def construct(self, taps: Tensor) -> Tensor:
        """``[B, N, taps * E_teacher] -> [B, N, E]``."""
        x = self.before(taps)
        if len(self.each) > 0:
            parts = ()
            for i in range(self.taps):
                parts = (*parts, self.each[i](x[:, :, i * self.width : (i + 1) * self.width]))
            x = ops.cat(parts, 2)
        return self.fc(x)


class DraftHead(nn.Cell):
    """The head over its own static cache; row ``p`` of it pairs feature ``p`` with token ``p + 1``.

    Attributes:
        positions: how many absolute positions the rotary tables cover.
        taps: teacher blocks whose inputs it reads.
        dtype: of features and hidden states.
    """

    def __init__(
        self,
        head: Head,
        vocabulary: Vocabulary,
        unembedding: Vocabulary,
        backend: Backend,
        *,
        batch: int,
        slots: int,
        positions: int,
    ) -> None:
        """Take the weights and allocate the cache.

        Args:
            head: weights and variants.
            vocabulary: the teacher's embedding, used when the head has none.
            unembedding: the teacher's LM head, used when the head shares it.
            backend: what the layers are made of.
            batch: B.
            slots: S_d, cache rows per sequence, the trash slot included.
            positions: how many positions the rotary tables cover.
        """
        super().__init__()
        config, read = head.config, _reader(head)
        self.hidden_size, self.positions = config.hidden_size, positions
        self.dtype, self.taps = backend.formats.activations, config.taps
        self.draft_vocab_size = config.draft_vocab_size
        own = config.own_embedding
        self.vocabulary = backend.vocabulary(read("embed.weight")) if own else vocabulary
        shared = config.shares_lm_head
        self.head = unembedding if shared else backend.vocabulary(read("lm_head.weight"))
        self.fuse = Fuse(head, backend)
        self.cache = KVCache(
            config.num_layers, batch, config.num_kv_heads, slots, config.head_dim, backend.formats.kv
        )
        self.rows = backend.rows(config.rope, positions, self.cache)
        self.steps = backend.steps(slots)
        # The first layer's input comes normed: embedding and feature have a norm each.
        self.layers = nn.CellList(
            [
                backend.layer(config, read, _names(f"layers.{i}."), self.cache, i, normed=i > 0)
                for i in range(config.num_layers)
            ]
        )
        self.pair = backend.pair(
            self.vocabulary,
            read("layers.0.input_norm.weight"),
            read("layers.0.hidden_norm.weight"),
            config.rms_norm_eps,
            residual_is_normed=config.norm_before_residual,
        )
        self.first_norm = nn.Identity()
        if config.double_norm:
            self.first_norm = backend.norm(read("layers.0.input_norm.weight"), config.rms_norm_eps)
        self.residual_is_feature = config.double_norm and not config.norm_before_residual
        self.norm = backend.norm(read("norm.weight"), config.rms_norm_eps)
        self.feature_is_normed, self.raw_logits = config.norm_output, config.raw_logits
        self.target_ids = parameter(head.target_ids, "target_ids", ms.int32)
        self._backend = backend

    def children(self, k: int) -> nn.Cell:
        """A Cell from hidden states ``[B, R, E]`` to the ``k`` children of each row, ``[B, R, k]`` each: ids
        of the teacher int32, best first, and log-probabilities float32; see ``tree.top_children``.
        """
        if self.raw_logits:
            return _RawChildren(self.head, self.target_ids, k)
        return self._backend.children(self.head, self.norm, self.target_ids, k)

    def construct(
        self, tokens: Tensor, features: Tensor, positions: Tensor, slots: Tensor, seen: Tensor
    ) -> Tensor:
        """Run N rows.

        Args:
            tokens: ``[B, N]`` int32, the token after each feature, ids of the teacher.
            features: ``[B, N, E]``, of ``fuse`` or ``next_feature``.
            positions: ``[B, N]`` int32, the features' positions.
            slots: ``[B, N]`` int32 in ``[0, S_d)``.
            seen: what each row sees, see ``models.backend``.

        Returns:
            hidden states ``[B, N, E]`` before the last norm, for ``logits`` and ``next_feature``.
        """
        rows = self.rows(positions, slots, seen)
        x, residual = self.pair(tokens, self.first_norm(features))
        if self.residual_is_feature:
            residual = features
        for layer in self.layers:
            x = layer(x, residual, rows)
            residual = x
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, N, E] ->`` float32 logits over the draft vocabulary, ``[B, N, V_d]``."""
        return self.head.logits(hidden if self.raw_logits else self.norm(hidden))

    def next_feature(self, hidden: Tensor) -> Tensor:
        """What stands in for the feature of the next position while drafting, ``[B, N, E]``."""
        return self.norm(hidden) if self.feature_is_normed else hidden


class _RawChildren(nn.Cell):
    """``Backend.children`` without the norm."""

    def __init__(self, head: Vocabulary, names: Parameter, k: int) -> None:
        super().__init__()
        self.head, self.names, self.k = head, names, k

    def construct(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        batch, rows, _ = hidden.shape
        logits = self.head.logits(hidden)
        ids, log_probs = top_children(logits.reshape(batch * rows, logits.shape[2]), self.k)
        shape = (batch, rows, self.k)
        return ops.gather(self.names, ids, 0).reshape(shape), log_probs.reshape(shape)


def _reader(head: Head) -> Read:
    return lambda name: stored_as(Weight.of(head.tensors[name]), head.weights)


def _names(prefix: str) -> LayerNames:
    return LayerNames(
        f"{prefix}input_norm.", f"{prefix}attention.", f"{prefix}post_attention_norm.", f"{prefix}mlp."
    )
