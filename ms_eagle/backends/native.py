"""Decoders from our own CPU kernels: float32, batch-invariant, weights packed once and held once."""

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from ms_eagle.backends.native_steps import NativeSteps
from ms_eagle.backends.stock import LayerNames
from ms_eagle.kernels import native
from ms_eagle.kernels.library import load
from ms_eagle.kernels.operators import Operators
from ms_eagle.models.attention import AttentionConfig, Read
from ms_eagle.models.commit import commit_by_length
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.rope import RopeConfig
from ms_eagle.sampling.fixed_point import DECAY


class NativeBackend:
    """Our kernels through ``ops.Custom``; see ``backend`` for the methods.

    Attributes:
        name: ``native``.
        dtype: float32.
    """

    name, dtype = "native", ms.float32

    def __init__(
        self, threads: int | None, strays: int, notice: Callable[[str], None] = lambda line: None
    ) -> None:
        """Build the kernels if this machine has not, and load them.

        Args:
            threads: of the process; None takes the cores it may use.
            strays: most keys a row sees beyond a prefix of the cache: the depth of the draft tree.
            notice: is told in one line of a cache of kernels that is not this user's alone.

        Raises:
            NativeUnavailable: there is no compiler, or the build fails.
        """
        self.operators = Operators(load(threads, notice=notice))
        self.strays = strays

    def steps(self, slots: int) -> NativeSteps:
        """See ``backend``."""
        return NativeSteps(self.operators, slots)

    def rows(self, rope: RopeConfig, positions: int, cache: KVCache) -> nn.Cell:
        """See ``backend``."""
        return _NativeRows(self.operators, rope, positions, self.strays)

    def layer(
        self,
        config: AttentionConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> nn.Cell:
        """See ``backend``."""
        return _NativeLayer(self.operators, config, read, names, cache, index, normed)

    def linear(self, weight: np.ndarray, bias: np.ndarray | None) -> nn.Cell:
        """See ``backend``."""
        return native.Linear(self.operators, weight, bias)

    def norm(self, weight: np.ndarray, eps: float) -> nn.Cell:
        """See ``backend``."""
        return native.RMSNorm(self.operators, weight, eps)

    def vocabulary(self, weight: np.ndarray) -> nn.Cell:
        """See ``backend``."""
        return NativeVocabulary(self.operators, weight)

    def pair(
        self,
        vocabulary: nn.Cell,
        input_norm: np.ndarray,
        feature_norm: np.ndarray,
        eps: float,
        *,
        residual_is_normed: bool,
    ) -> nn.Cell:
        """See ``backend``."""
        return native.Pair(self.operators, vocabulary, input_norm, feature_norm, eps, residual_is_normed)

    def children(self, vocabulary: nn.Cell, norm: nn.Cell, names: Parameter, k: int) -> nn.Cell:
        """See ``backend``."""
        return native.Children(self.operators, vocabulary, norm, names, k)

    def choice(self) -> nn.Cell:
        """See ``backend``."""
        return NativeChoice(self.operators)

    def settle(self, *cells: nn.Cell) -> None:
        """See ``backend``: to large memory pages, while the caller goes on."""
        native.settle(self.operators.library, *cells)

    def reorder(self, cache: KVCache) -> nn.Cell:
        """See ``backend``; one op for all layers."""
        return _NativeReorder(self.operators, cache)


class NativeVocabulary(native.Vocabulary):
    """The packed matrix ``[V, E]``; greedy choice never writes the logits."""

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, N, E] ->`` the lowest id of the largest logit ``[B, N]``, and ``[B]``: one is NaN or inf."""
        return self.argmax(hidden)


class NativeChoice(nn.Cell):
    """Sampling as one kernel: bit for bit the choices of ``choice.StockChoice``; see there."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self.decay = Parameter(DECAY, name="decay", requires_grad=False)
        self.run_sample, self.run_mark = operators.sample(), operators.mark()

    def sample(
        self,
        logits: Tensor,
        seen: Parameter,
        paths: Tensor,
        positions: Tensor,
        params: Tensor,
        uniforms: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See ``choice.StockChoice``."""
        return self.run_sample(logits, seen, paths, positions, params, uniforms, self.decay)

    def remember(self, seen: Parameter, tokens: Tensor, count: Tensor) -> Tensor:
        """See ``choice.StockChoice``."""
        self.run_mark(tokens, count, seen)
        return tokens


class _NativeRows(nn.Cell):
    """What every layer needs: the whole rotary tables, and lists of visible keys, also in place of a mask."""

    def __init__(self, operators: Operators, rope: RopeConfig, positions: int, strays: int) -> None:
        super().__init__()
        cos, sin = rope.tables(positions)
        self.cos = Parameter(Tensor(cos), name="cos", requires_grad=False)
        self.sin = Parameter(Tensor(sin), name="sin", requires_grad=False)
        self.visible = operators.visible(strays)

    def construct(self, positions: Tensor, slots: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        if seen.dtype == ms.bool_:
            seen = self.visible(seen)
        return self.cos, self.sin, positions, slots, seen


class _NativeLayer(nn.Cell):
    """One decoder layer as two ops."""

    def __init__(
        self,
        operators: Operators,
        config: AttentionConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> None:
        super().__init__()
        eps = config.rms_norm_eps

        def joined(prefix: str, parts: tuple[str, ...], kind: str, there: bool) -> np.ndarray | None:
            return np.concatenate([read(f"{prefix}{part}.{kind}") for part in parts]) if there else None

        qkv, gate_up = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
        self.attention = native.AttentionBlock(
            operators,
            joined(names.attention, qkv, "weight", True),
            read(f"{names.attention}o_proj.weight"),
            eps,
            cache.shape,
            norm=read(f"{names.attention_norm}weight") if normed else None,
            qkv_bias=joined(names.attention, qkv, "bias", config.qkv_bias),
            out_bias=joined(names.attention, ("o_proj",), "bias", config.o_bias),
            q_norm=read(f"{names.attention}q_norm.weight") if config.qk_norm else None,
            k_norm=read(f"{names.attention}k_norm.weight") if config.qk_norm else None,
        )
        self.mlp = native.MlpBlock(
            operators,
            read(f"{names.mlp}gate_proj.weight"),
            read(f"{names.mlp}up_proj.weight"),
            read(f"{names.mlp}down_proj.weight"),
            eps,
            norm=read(f"{names.mlp_norm}weight"),
            gate_up_bias=joined(names.mlp, gate_up, "bias", config.mlp_bias),
            down_bias=joined(names.mlp, ("down_proj",), "bias", config.mlp_bias),
        )
        self.keys, self.values = cache.keys[index], cache.values[index]

    def construct(self, x: Tensor, residual: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        cos, sin, positions, slots, visible = rows
        x = self.attention(x, residual, cos, sin, positions, slots, visible, self.keys, self.values)
        return self.mlp(x)


class _NativeReorder(nn.Cell):
    """See ``commit.FastReorder`` for the arguments."""

    def __init__(self, operators: Operators, cache: KVCache) -> None:
        super().__init__()
        self.cache, self.steps = cache, NativeSteps(operators, cache.shape[2])
        self.move = native.Commit(operators, ParameterTuple((*cache.keys, *cache.values)), cache.shape)

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> Tensor:
        self.move(*self.steps.moves(path, count, n))
        return commit_by_length(n, count)
