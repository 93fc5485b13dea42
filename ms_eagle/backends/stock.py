"""Teacher and drafter from MindSpore's own operators, with a chosen attention kernel."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from typing_extensions import override

from ms_eagle.backends.stock_steps import StockSteps
from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.kernels.fused import FusedAttention
from ms_eagle.models.architecture import LayerConfig
from ms_eagle.models.attention import Attention, linear
from ms_eagle.models.backend import Backend, Choice, Formats, LayerNames, Vocabulary
from ms_eagle.models.commit import FastReorder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.layers import Linear, RMSNorm, SwiGLU, parameter, weight_parameter
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.weight import Read, Weight
from ms_eagle.sampling.choice import (
    any_not_finite,
    choose_greedy,
    choose_sampled,
    mark_seen,
    nothing_left,
    seen_rows,
    without_ends,
)
from ms_eagle.tree.growth import top_children


class StockBackend(Backend):
    """On any device; ``name`` is that of the attention kernel, ``eager`` or ``fused``."""

    codes = False

    def __init__(self, name: str, dtype: ms.Type) -> None:
        self.name, self.formats = name, Formats.uniform(dtype)

    @override
    def steps(self, slots: int) -> StockSteps:
        return StockSteps(slots)

    @override
    def rows(self, rope: RopeConfig, positions: int, cache: KVCache) -> nn.Cell:
        return _StockRows(rope, positions, cache)

    @override
    def layer(
        self,
        config: LayerConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> nn.Cell:
        kernel = self.kernel(config)
        return _StockLayer(config, read, names, cache, index, normed, kernel, self.formats.weights)

    def kernel(self, config: LayerConfig) -> nn.Cell:
        """The attention kernel for a model's sizes."""
        if self.name == "fused":
            return FusedAttention(config.num_heads, config.head_dim)
        return EagerAttention(config.head_dim)

    @override
    def linear(self, weight: Weight, bias: Weight | None) -> nn.Cell:
        return Linear(weight, bias, self.formats.weights)

    @override
    def norm(self, weight: Weight, eps: float) -> nn.Cell:
        return RMSNorm(weight, eps, self.formats.weights)

    @override
    def vocabulary(self, weight: Weight) -> Vocabulary:
        return StockVocabulary(weight, self.formats.weights)

    @override
    def pair(
        self,
        vocabulary: Vocabulary,
        input_norm: Weight,
        feature_norm: Weight,
        eps: float,
        *,
        residual_is_normed: bool,
    ) -> nn.Cell:
        norms = self.norm(input_norm, eps), self.norm(feature_norm, eps)
        return _StockPair(vocabulary, *norms, residual_is_normed)

    @override
    def children(self, vocabulary: Vocabulary, norm: nn.Cell, names: Parameter, k: int) -> nn.Cell:
        return _StockChildren(vocabulary, norm, names, k)

    @override
    def choice(self) -> Choice:
        return StockChoice()

    @override
    def reorder(self, cache: KVCache) -> nn.Cell:
        return FastReorder(cache)

    @override
    def settle(self, *cells: nn.Cell) -> None:  # stock operators do not notice where weights lie
        pass


class StockChoice(nn.Cell, Choice):
    """Sampling by MindSpore operators."""

    @override
    def sample(
        self,
        logits: Tensor,
        seen: Parameter,
        paths: Tensor,
        positions: Tensor,
        params: Tensor,
        uniforms: Tensor,
    ) -> tuple[Tensor, Tensor]:
        drawn = ops.gather_d(uniforms, 1, positions + 1)
        going_on = without_ends(logits, positions, params)
        fault = ops.logical_or(any_not_finite(logits), nothing_left(going_on))
        return choose_sampled(going_on, seen_rows(seen, paths), params, drawn), fault

    @override
    def remember(self, seen: Parameter, tokens: Tensor, count: Tensor) -> Tensor:
        batch, width = tokens.shape
        valid = ops.arange(width).astype(ms.int32).reshape(1, width) < count.reshape(batch, 1)
        ops.assign(seen, mark_seen(seen, tokens, valid))
        return tokens


class StockVocabulary(nn.Cell, Vocabulary):
    """One Parameter for embedding and LM head."""

    def __init__(self, weight: Weight, dtype: ms.Type) -> None:
        super().__init__()
        self.size = weight.shape[0]
        self.weight = weight_parameter(weight, "weight", dtype)
        self.multiply = ops.MatMul(transpose_b=True)

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        return ops.gather(self.weight, tokens, 0)

    @override
    def logits(self, hidden: Tensor) -> Tensor:
        batch, rows, width = hidden.shape
        out = self.multiply(hidden.reshape(batch * rows, width), self.weight)
        return out.reshape(batch, rows, self.size).astype(ms.float32)

    @override
    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        return choose_greedy(logits), any_not_finite(logits)


class _StockPair(nn.Cell):
    """Embedding and feature, each normed, side by side."""

    def __init__(
        self, vocabulary: Vocabulary, input_norm: nn.Cell, feature_norm: nn.Cell, normed: bool
    ) -> None:
        super().__init__()
        self.vocabulary, self.input_norm, self.feature_norm = vocabulary, input_norm, feature_norm
        self.residual_is_normed = normed

    def construct(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.feature_norm(features)
        x = ops.cat((self.input_norm(self.vocabulary.embed(tokens)), normed), 2)
        return x, (normed if self.residual_is_normed else features)


class _StockChildren(nn.Cell):
    """Norm, LM head, log-softmax and top-k one after another."""

    def __init__(self, vocabulary: Vocabulary, norm: nn.Cell, names: Parameter, k: int) -> None:
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
        config: LayerConfig,
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
            linear(read, names.mlp, ("gate_proj", "up_proj"), config.mlp_bias, dtype),
            linear(read, names.mlp, ("down_proj",), config.mlp_bias, dtype),
        )
        self.cache, self.index = cache, index

    def construct(self, x: Tensor, residual: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        cos, sin, where, mask = rows
        q, k, v = self.attention.project(self.attention_norm(x), cos, sin)
        keys, values = self.cache.write(self.index, k, v, where)
        x = residual + self.attention.attend(q, keys, values, mask)
        return x + self.mlp(self.mlp_norm(x))
