"""What a decoder is made of, behind one interface, so that teacher and drafter are written once.

A backend makes Cells from checkpoint tensors; ``StockBackend`` (here) from MindSpore operators with a chosen
attention kernel, ``NativeBackend`` (``native_backend``) from our own CPU kernels:

``rows(rope, positions, cache)``
    a Cell ``(positions [B,N], slots [B,N], mask [B,1,N,S]) -> rows``, a tuple that ``layer`` understands and
    that is worked out once for all layers;
``layer(config, read, names, cache, index, normed)``
    a Cell ``(x [B,N,A], residual [B,N,E], rows) -> [B,N,E]``: attention, then MLP, each with its residual;
``linear(weight, bias)``, ``norm(weight, eps)``
    Cells ``[B,N,in] -> [B,N,out]``;
``vocabulary(weight)``
    a Cell with the methods ``embed``, ``logits`` and ``greedy``.
"""

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_eagle.attention import Attention, AttentionConfig, Read, joined
from ms_eagle.choice import any_not_finite, choose_greedy
from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.kernels.fused import FusedAttention
from ms_eagle.kv_cache import KVCache
from ms_eagle.layers import Linear, RMSNorm, SwiGLU, parameter
from ms_eagle.rope import RopeConfig


@dataclass(frozen=True)
class LayerNames:
    """Where the tensors of one layer stand in a checkpoint: prefixes that end in a dot."""

    attention_norm: str
    attention: str
    mlp_norm: str
    mlp: str


class StockBackend:
    """MindSpore's own operators, on any device.

    Attributes:
        name: of the attention kernel, ``eager`` or ``fused``.
        dtype: of weights, caches and activations; norms, softmax and rotation work in float32.
    """

    def __init__(self, name: str, dtype: ms.Type) -> None:
        self.name, self.dtype = name, dtype

    def rows(self, rope: RopeConfig, positions: int, cache: KVCache) -> nn.Cell:
        """See the module; ``positions`` is how many the rotary tables cover."""
        return _StockRows(rope, positions, cache)

    def layer(
        self,
        config: AttentionConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> nn.Cell:
        """See the module; ``normed``: the layer norms its own input, else it comes normed."""
        kernel = self.kernel(config)
        return _StockLayer(config, read, names, cache, index, normed, kernel, self.dtype)

    def kernel(self, config: AttentionConfig) -> nn.Cell:
        """The attention kernel for a model's sizes."""
        if self.name == "fused":
            return FusedAttention(config.num_heads, config.head_dim)
        return EagerAttention(config.head_dim)

    def linear(self, weight: np.ndarray, bias: np.ndarray | None) -> nn.Cell:
        """``[B, N, in] -> [B, N, out]``; weight ``[out, in]``."""
        return Linear(weight, bias, self.dtype)

    def norm(self, weight: np.ndarray, eps: float) -> nn.Cell:
        """RMSNorm over the last dimension."""
        return RMSNorm(weight, eps, self.dtype)

    def vocabulary(self, weight: np.ndarray) -> nn.Cell:
        """Embedding and LM head over one matrix ``[V, E]``."""
        return StockVocabulary(weight, self.dtype)


class StockVocabulary(nn.Cell):
    """A matrix ``[V, E]`` for looking tokens up and for scoring them."""

    def __init__(self, weight: np.ndarray, dtype: ms.Type) -> None:
        super().__init__()
        self.size = weight.shape[0]
        self.weight = parameter(weight, "weight", dtype)
        self.multiply = ops.MatMul(transpose_b=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """int32 ``[B, N]`` in ``[0, V) -> [B, N, E]``."""
        return ops.gather(self.weight, tokens, 0)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[B, N, E] ->`` float32 ``[B, N, V]``."""
        batch, rows, width = hidden.shape
        out = self.multiply(hidden.reshape(batch * rows, width), self.weight)
        return out.reshape(batch, rows, self.size).astype(ms.float32)

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, N, E] ->`` the lowest id of the largest logit ``[B, N]``, and ``[B]``: one is NaN or inf."""
        logits = self.logits(hidden)
        return choose_greedy(logits), any_not_finite(logits)


class _StockRows(nn.Cell):
    """Gathers what every layer needs: cos, sin ``[B, 1, N, d/2]``, row numbers of the caches, the mask."""

    def __init__(self, rope: RopeConfig, positions: int, cache: KVCache) -> None:
        super().__init__()
        cos, sin = rope.tables(positions)
        self.half = rope.head_dim // 2
        self.cos = parameter(cos, "cos", ms.float32)
        self.sin = parameter(sin, "sin", ms.float32)
        self.cache = cache

    def construct(
        self, positions: Tensor, slots: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, rows = positions.shape
        shape = (batch, 1, rows, self.half)
        cos = ops.gather(self.cos, positions, 0).reshape(shape)
        sin = ops.gather(self.sin, positions, 0).reshape(shape)
        return cos, sin, self.cache.row_numbers(slots), mask


class _StockLayer(nn.Cell):
    """One pre-norm decoder layer."""

    def __init__(
        self,
        config: AttentionConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
        kernel: nn.Cell,
        dtype: ms.Type,
    ) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        own = RMSNorm(read(f"{names.attention_norm}weight"), eps, dtype) if normed else nn.Identity()
        self.attention_norm = own
        self.attention = Attention(config, read, names.attention, kernel, dtype)
        self.mlp_norm = RMSNorm(read(f"{names.mlp_norm}weight"), eps, dtype)
        self.mlp = SwiGLU(
            joined(read, names.mlp, ("gate_proj", "up_proj"), config.mlp_bias, dtype),
            joined(read, names.mlp, ("down_proj",), config.mlp_bias, dtype),
        )
        self.cache, self.index = cache, index

    def construct(self, x: Tensor, residual: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        cos, sin, where, mask = rows
        q, k, v = self.attention.project(self.attention_norm(x), cos, sin)
        keys, values = self.cache.write(self.index, k, v, where)
        x = residual + self.attention.attend(q, keys, values, mask)
        return x + self.mlp(self.mlp_norm(x))
