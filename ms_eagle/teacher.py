"""The teacher: one decoder Cell for prefill chunks, single tokens and tree rows alike."""

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_eagle.architecture import DecoderConfig
from ms_eagle.kv_cache import KVCache, cell_indices
from ms_eagle.layers import Linear, RMSNorm, SwiGLU, parameter, rotate

Read = Callable[[str], np.ndarray]


class Attention(nn.Cell):
    """Grouped-query attention of one layer; q, k and v come from one product."""

    def __init__(
        self, config: DecoderConfig, read: Read, prefix: str, kernel: nn.Cell, dtype: ms.Type
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv = _joined(read, prefix, ("q_proj", "k_proj", "v_proj"), config.qkv_bias, dtype)
        self.out = _joined(read, prefix, ("o_proj",), config.o_bias, dtype)
        self.norms_heads = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(read(f"{prefix}q_norm.weight"), config.rms_norm_eps, dtype)
            self.k_norm = RMSNorm(read(f"{prefix}k_norm.weight"), config.rms_norm_eps, dtype)
        self.kernel = kernel

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[B, N, E] ->`` rotated q ``[B, H, N, d]``, rotated k and plain v ``[B, H_kv, N, d]``."""
        batch, rows, _ = x.shape
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv(x).reshape(batch, rows, heads + 2 * kv_heads, self.head_dim)
        qkv = ops.transpose(qkv, (0, 2, 1, 3))
        if self.norms_heads:
            q = self.q_norm(qkv[:, :heads])
            k = self.k_norm(qkv[:, heads : heads + kv_heads])
            return rotate(q, cos, sin), rotate(k, cos, sin), qkv[:, heads + kv_heads :]
        qk = rotate(qkv[:, : heads + kv_heads], cos, sin)
        return qk[:, :heads], qk[:, heads:], qkv[:, heads + kv_heads :]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend over the whole cache and project: ``-> [B, N, E]``."""
        batch, heads, rows, d = q.shape
        mixed = self.kernel(q, keys, values, mask)
        return self.out(ops.transpose(mixed, (0, 2, 1, 3)).reshape(batch, rows, heads * d))


class Block(nn.Cell):
    """One pre-norm decoder block."""

    def __init__(
        self, config: DecoderConfig, read: Read, prefix: str, kernel: nn.Cell, dtype: ms.Type
    ) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.attention_norm = RMSNorm(read(f"{prefix}input_layernorm.weight"), eps, dtype)
        self.attention = Attention(config, read, f"{prefix}self_attn.", kernel, dtype)
        self.mlp_norm = RMSNorm(read(f"{prefix}post_attention_layernorm.weight"), eps, dtype)
        self.mlp = SwiGLU(
            _joined(read, f"{prefix}mlp.", ("gate_proj", "up_proj"), config.mlp_bias, dtype),
            _joined(read, f"{prefix}mlp.", ("down_proj",), config.mlp_bias, dtype),
        )


class Teacher(nn.Cell):
    """A decoder over static caches: the rows of a call are written at given slots, then attended.

    The same Cell serves a prefill chunk, one token, or a tree: what a row sees is the mask's business.

    Args:
        config: the architecture.
        read: returns a checkpoint tensor by its Hugging Face name.
        kernel: an attention kernel (``ms_eagle.kernels``).
        dtype: of weights, caches and activations; norms, softmax and rotation work in float32.
        batch: B.
        slots: S, cache rows per sequence, the trash slot included.
        positions: how many positions the rotary tables cover.
        taps: blocks whose inputs are returned as features for the drafter.
    """

    def __init__(
        self,
        config: DecoderConfig,
        read: Read,
        kernel: nn.Cell,
        dtype: ms.Type,
        *,
        batch: int,
        slots: int,
        positions: int,
        taps: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.vocab_size, self.head_dim, self.kv_heads = (
            config.vocab_size,
            config.head_dim,
            config.num_kv_heads,
        )
        self.taps = taps
        embedding = read("model.embed_tokens.weight")
        self.embedding = parameter(embedding, "embedding", dtype)
        self.blocks = nn.CellList(
            [Block(config, read, f"model.layers.{i}.", kernel, dtype) for i in range(config.num_layers)]
        )
        self.norm = RMSNorm(read("model.norm.weight"), config.rms_norm_eps, dtype)
        if not config.tied:
            self.head = parameter(read("lm_head.weight"), "head", dtype)
        self.tied = config.tied
        self.unembed = ops.MatMul(transpose_b=True)
        cos, sin = config.rope.tables(positions)
        self.cos = parameter(cos, "cos", ms.float32)
        self.sin = parameter(sin, "sin", ms.float32)
        self.cache = KVCache(config.num_layers, batch, config.num_kv_heads, slots, config.head_dim, dtype)

    def construct(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run N rows.

        Args:
            tokens: ``[B, N]`` int32 ids in ``[0, vocab)``.
            positions: ``[B, N]`` int32 in ``[0, positions)``.
            slots: ``[B, N]`` int32 in ``[0, S)``: where each row's K and V go.
            mask: ``[B, 1, N, S]`` bool, True = discard; at least one visible key per row.

        Returns:
            normed hidden states ``[B, N, E]`` for ``logits``, and the taps ``[B, N, len(taps) * E]``
            (``[B, N, E]``, the embedding, when there are none).
        """
        batch, rows = tokens.shape
        half = self.head_dim // 2
        cos = ops.gather(self.cos, positions, 0).reshape(batch, 1, rows, half)
        sin = ops.gather(self.sin, positions, 0).reshape(batch, 1, rows, half)
        where = cell_indices(slots, self.kv_heads)
        x = ops.gather(self.embedding, tokens, 0)
        features = ()
        for i, block in enumerate(self.blocks):
            if i in self.taps:
                features = (*features, x)
            q, k, v = block.attention.project(block.attention_norm(x), cos, sin)
            keys, values = self.cache.write(i, k, v, where)
            x = x + block.attention.attend(q, keys, values, mask)
            x = x + block.mlp(block.mlp_norm(x))
        features = ops.cat(features, 2) if len(self.taps) > 0 else x
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states ``[B, N, E] ->`` float32 logits ``[B, N, vocab]``."""
        batch, rows, width = hidden.shape
        weight = self.embedding if self.tied else self.head
        out = self.unembed(hidden.reshape(batch * rows, width), weight)
        return out.reshape(batch, rows, self.vocab_size).astype(ms.float32)


def _joined(read: Read, prefix: str, names: tuple[str, ...], bias: bool, dtype: ms.Type) -> Linear:
    """One Linear whose outputs are those of ``names``, one after another."""
    weight = np.concatenate([read(f"{prefix}{name}.weight") for name in names])
    joined = np.concatenate([read(f"{prefix}{name}.bias") for name in names]) if bias else None
    return Linear(weight, joined, dtype)
