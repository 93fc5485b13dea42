"""The teacher: one decoder Cell for prefill chunks, single tokens and tree rows alike."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.architecture import DecoderConfig
from ms_eagle.attention import Attention, Read, joined
from ms_eagle.kv_cache import KVCache
from ms_eagle.layers import RMSNorm, SwiGLU, parameter


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
            joined(read, f"{prefix}mlp.", ("gate_proj", "up_proj"), config.mlp_bias, dtype),
            joined(read, f"{prefix}mlp.", ("down_proj",), config.mlp_bias, dtype),
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
        self.vocab_size, self.head_dim = config.vocab_size, config.head_dim
        self.taps = taps
        embedding = read("model.embed_tokens.weight")
        self.embedding = parameter(embedding, "embedding", dtype)
        self.blocks = nn.CellList(
            [Block(config, read, f"model.layers.{i}.", kernel, dtype) for i in range(config.num_layers)]
        )
        self.norm = RMSNorm(read("model.norm.weight"), config.rms_norm_eps, dtype)
        tied = config.tied
        self.unembedding = self.embedding if tied else parameter(read("lm_head.weight"), "unembedding", dtype)
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
        where = self.cache.row_numbers(slots)
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
        out = self.unembed(hidden.reshape(batch * rows, width), self.unembedding)
        return out.reshape(batch, rows, self.vocab_size).astype(ms.float32)
