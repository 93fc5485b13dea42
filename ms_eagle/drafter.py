"""The EAGLE-3 drafter: a small decoder over the teacher's features (arXiv 2503.01840, section 3).

``head_config`` has the formulas; this file carries them out over a static cache.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.attention import Attention, joined
from ms_eagle.head_checkpoint import Head
from ms_eagle.kv_cache import KVCache
from ms_eagle.layers import Linear, RMSNorm, SwiGLU, parameter


class Fuse(nn.Cell):
    """Taps to features: ``fc`` and the norms that may stand before it."""

    def __init__(self, head: Head, dtype: ms.Type) -> None:
        super().__init__()
        config, tensors = head.config, head.tensors
        self.width = config.target_hidden_size
        self.taps = config.num_taps
        self.fc = Linear(tensors["fc.weight"], tensors.get("fc.bias"), dtype)
        self.before = (
            RMSNorm(tensors["input_norm.weight"], config.rms_norm_eps, dtype)
            if config.norm_before_fc
            else nn.Identity()
        )
        norms = range(config.num_taps) if config.fc_norm else ()
        self.each = nn.CellList(
            [RMSNorm(tensors[f"fc_norm.{i}.weight"], config.rms_norm_eps, dtype) for i in norms]
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


class DraftLayer(nn.Cell):
    """One decoder layer of the head; the first takes embedding and feature side by side."""

    def __init__(self, head: Head, index: int, kernel: nn.Cell, dtype: ms.Type) -> None:
        super().__init__()
        config, read = head.config, head.tensors.__getitem__
        eps, prefix = config.rms_norm_eps, f"layers.{index}."
        self.input_norm = RMSNorm(read(f"{prefix}input_norm.weight"), eps, dtype)
        self.attention = Attention(config, read, f"{prefix}attention.", kernel, dtype)
        self.mlp_norm = RMSNorm(read(f"{prefix}post_attention_norm.weight"), eps, dtype)
        self.mlp = SwiGLU(
            joined(read, f"{prefix}mlp.", ("gate_proj", "up_proj"), config.mlp_bias, dtype),
            joined(read, f"{prefix}mlp.", ("down_proj",), config.mlp_bias, dtype),
        )


class Drafter(nn.Cell):
    """The head over its own static cache; row ``p`` of it pairs feature ``p`` with token ``p + 1``.

    Args:
        head: weights and variants.
        embedding: the teacher's, used when the head has none.
        unembedding: the teacher's LM head, used when the head shares it.
        kernel: an attention kernel for the head's sizes.
        dtype: of weights, cache and activations.
        batch: B.
        slots: S_d, cache rows per sequence, the trash slot included.
        positions: how many positions the rotary tables cover.
    """

    def __init__(
        self,
        head: Head,
        embedding: Parameter,
        unembedding: Parameter,
        kernel: nn.Cell,
        dtype: ms.Type,
        *,
        batch: int,
        slots: int,
        positions: int,
    ) -> None:
        super().__init__()
        config, tensors = head.config, head.tensors
        self.hidden_size, self.head_dim = config.hidden_size, config.head_dim
        self.draft_vocab_size = config.draft_vocab_size
        own = config.own_embedding
        self.embedding = parameter(tensors["embed.weight"], "embedding", dtype) if own else embedding
        shared = config.shares_lm_head
        self.head = unembedding if shared else parameter(tensors["lm_head.weight"], "head", dtype)
        self.fuse = Fuse(head, dtype)
        self.layers = nn.CellList([DraftLayer(head, i, kernel, dtype) for i in range(config.num_layers)])
        self.hidden_norm = RMSNorm(tensors["layers.0.hidden_norm.weight"], config.rms_norm_eps, dtype)
        self.norm = RMSNorm(tensors["norm.weight"], config.rms_norm_eps, dtype)
        self.residual_is_normed = config.norm_before_residual
        self.feature_is_normed = config.norm_output
        ids = np.arange(config.draft_vocab_size, dtype=np.int32) if head.d2t is None else head.d2t
        self.target_ids = parameter(ids, "target_ids", ms.int32)
        cos, sin = config.rope.tables(positions)
        self.cos = parameter(cos, "cos", ms.float32)
        self.sin = parameter(sin, "sin", ms.float32)
        self.unembed = ops.MatMul(transpose_b=True)
        self.cache = KVCache(config.num_layers, batch, config.num_kv_heads, slots, config.head_dim, dtype)

    def construct(
        self, tokens: Tensor, features: Tensor, positions: Tensor, slots: Tensor, mask: Tensor
    ) -> Tensor:
        """Run N rows.

        Args:
            tokens: ``[B, N]`` int32, the token after each feature, ids of the teacher.
            features: ``[B, N, E]``, of ``fuse`` or ``next_feature``.
            positions: ``[B, N]`` int32, the features' positions.
            slots: ``[B, N]`` int32 in ``[0, S_d)``.
            mask: ``[B, 1, N, S_d]`` bool, True = discard.

        Returns:
            hidden states ``[B, N, E]`` before the last norm, for ``logits`` and ``next_feature``.
        """
        batch, rows = tokens.shape
        half = self.head_dim // 2
        cos = ops.gather(self.cos, positions, 0).reshape(batch, 1, rows, half)
        sin = ops.gather(self.sin, positions, 0).reshape(batch, 1, rows, half)
        where = self.cache.row_numbers(slots)
        normed = self.hidden_norm(features)
        x = normed if self.residual_is_normed else features
        for i, layer in enumerate(self.layers):
            if i == 0:
                embedded = layer.input_norm(ops.gather(self.embedding, tokens, 0))
                inputs = ops.cat((embedded, normed), 2)
            else:
                inputs = layer.input_norm(x)
            q, k, v = layer.attention.project(inputs, cos, sin)
            keys, values = self.cache.write(i, k, v, where)
            x = x + layer.attention.attend(q, keys, values, mask)
            x = x + layer.mlp(layer.mlp_norm(x))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, N, E] ->`` float32 logits over the draft vocabulary, ``[B, N, V_d]``."""
        batch, rows, width = hidden.shape
        out = self.unembed(self.norm(hidden).reshape(batch * rows, width), self.head)
        return out.reshape(batch, rows, self.draft_vocab_size).astype(ms.float32)

    def next_feature(self, hidden: Tensor) -> Tensor:
        """What stands in for the feature of the next position while drafting, ``[B, N, E]``."""
        return self.norm(hidden) if self.feature_is_normed else hidden
