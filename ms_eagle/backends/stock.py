"""What a decoder is made of, behind one interface, so that teacher and drafter are written once.

A backend makes Cells from checkpoint tensors; ``StockBackend`` (here) from MindSpore operators with a chosen
attention kernel, ``NativeBackend`` (``native_backend``) from our own CPU kernels:

``steps(slots)``
    the steps of a cycle between its forwards, see ``steps``; they also say what rows see;
``rows(rope, positions, cache)``
    a Cell ``(positions [B,N], slots [B,N], seen) -> rows``, a tuple that ``layer`` understands and that is
    worked out once for all layers;
``layer(config, read, names, cache, index, normed)``
    a Cell ``(x [B,N,A], residual [B,N,E], rows) -> [B,N,E]``: attention, then MLP, each with its residual;
``linear(weight, bias)``, ``norm(weight, eps)``
    Cells ``[B,N,in] -> [B,N,out]``;
``vocabulary(weight)``
    a Cell with the methods ``embed``, ``logits`` and ``greedy``;
``pair(vocabulary, input_norm, feature_norm, eps, residual_is_normed)``
    a Cell ``(tokens [B,N], features [B,N,E]) -> x [B,N,A+E], residual [B,N,E]``: what a drafter's first layer
    reads, the normed embedding beside the normed feature;
``children(vocabulary, norm, names, k)``
    a Cell ``hidden [B,R,E] -> tokens [B,R,k], log-probabilities [B,R,k]``, see ``Drafter.children``;
``choice()``
    a Cell with the methods ``sample`` and ``remember``, see ``choice.StockChoice``;
``reorder(cache)``
    a Cell that commits the accepted path, as ``commit.FastReorder`` does;
``settle(*cells)``
    puts the weights and caches of loaded Cells where they are read fastest.
"""

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.backends.stock_steps import StockSteps
from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.kernels.fused import FusedAttention
from ms_eagle.models.attention import Attention, AttentionConfig, Read, joined
from ms_eagle.models.commit import FastReorder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.layers import Linear, RMSNorm, SwiGLU, parameter
from ms_eagle.models.rope import RopeConfig
from ms_eagle.sampling.choice import StockChoice, any_not_finite, choose_greedy
from ms_eagle.tree.growth import top_children


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

    def steps(self, slots: int) -> StockSteps:
        """The steps over a cache of ``slots`` slots."""
        return StockSteps(slots)

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

    def pair(
        self,
        vocabulary: nn.Cell,
        input_norm: np.ndarray,
        feature_norm: np.ndarray,
        eps: float,
        *,
        residual_is_normed: bool,
    ) -> nn.Cell:
        """See the module; ``residual_is_normed``: the residual is the normed feature."""
        norms = self.norm(input_norm, eps), self.norm(feature_norm, eps)
        return _StockPair(vocabulary, *norms, residual_is_normed)

    def children(self, vocabulary: nn.Cell, norm: nn.Cell, names: Parameter, k: int) -> nn.Cell:
        """See the module; ``norm``: of hidden states; ``names``: a token for each column, ``[V]`` int32."""
        return _StockChildren(vocabulary, norm, names, k)

    def choice(self) -> nn.Cell:
        """See the module."""
        return StockChoice()

    def reorder(self, cache: KVCache) -> nn.Cell:
        """See the module."""
        return FastReorder(cache)

    def settle(self, *cells: nn.Cell) -> None:
        """See the module; stock operators are not fast enough to notice where weights lie."""


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


class _StockPair(nn.Cell):
    """Embedding and feature, each normed, side by side."""

    def __init__(self, vocabulary: nn.Cell, input_norm: nn.Cell, feature_norm: nn.Cell, normed: bool) -> None:
        super().__init__()
        self.vocabulary, self.input_norm, self.feature_norm = vocabulary, input_norm, feature_norm
        self.residual_is_normed = normed

    def construct(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.feature_norm(features)
        x = ops.cat((self.input_norm(self.vocabulary.embed(tokens)), normed), 2)
        return x, (normed if self.residual_is_normed else features)


class _StockChildren(nn.Cell):
    """Norm, LM head, log-softmax and top-k one after another."""

    def __init__(self, vocabulary: nn.Cell, norm: nn.Cell, names: Parameter, k: int) -> None:
        super().__init__()
        self.vocabulary, self.norm, self.names, self.k = vocabulary, norm, names, k

    def construct(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        batch, rows, _ = hidden.shape
        logits = self.vocabulary.logits(self.norm(hidden))
        ids, log_probs = top_children(logits.reshape(batch * rows, logits.shape[2]), self.k)
        shape = (batch, rows, self.k)
        return ops.gather(self.names, ids, 0).reshape(shape), log_probs.reshape(shape)


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
        self, positions: Tensor, slots: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, rows = positions.shape
        shape = (batch, 1, rows, self.half)
        cos = ops.gather(self.cos, positions, 0).reshape(shape)
        sin = ops.gather(self.sin, positions, 0).reshape(shape)
        return cos, sin, self.cache.row_numbers(slots), seen


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
