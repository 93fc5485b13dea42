"""Teacher and drafter from our own CPU kernels: batch-invariant, weights packed and held once."""

from collections.abc import Callable
from typing import cast

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn
from typing_extensions import override

from ms_eagle.backends.native_steps import NativeSteps
from ms_eagle.kernels import native
from ms_eagle.kernels.library import load
from ms_eagle.kernels.operators import Operators
from ms_eagle.models.architecture import LayerConfig
from ms_eagle.models.backend import Backend, Choice, Formats, LayerNames, Vocabulary
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.weight import Read, Weight, joined
from ms_eagle.sampling.fixed_point import DECAY


class NativeBackend(Backend):
    """Our kernels through ``ops.Custom``."""

    name, formats, codes = "native", Formats.uniform(ms.float32), True

    def __init__(
        self, threads: int | None, strays: int, notice: Callable[[str], None] = lambda line: None
    ) -> None:
        """Build the kernels if this machine has not, and load them.

        Args:
            threads: of the process; None takes the cores it may use.
            strays: most keys a row sees beyond a prefix of the cache: the depth of the draft tree.
            notice: see ``build.build``.

        Raises:
            NativeUnavailable: there is no compiler, or the build fails.
        """
        self.operators = Operators(load(threads, notice=notice))
        self.strays = strays

    @override
    def steps(self, slots: int) -> NativeSteps:
        return NativeSteps(self.operators, slots)

    @override
    def rows(self, rope: RopeConfig, positions: int, cache: KVCache) -> nn.Cell:
        return _NativeRows(self.operators, rope, positions, self.strays)

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
        return _NativeLayer(self.operators, config, read, names, cache, index, normed)

    @override
    def linear(self, weight: Weight, bias: Weight | None) -> nn.Cell:
        return native.Linear(self.operators, weight, bias)

    @override
    def norm(self, weight: Weight, eps: float) -> nn.Cell:
        return native.RMSNorm(self.operators, weight, eps)

    @override
    def vocabulary(self, weight: Weight) -> Vocabulary:
        return native.Vocabulary(self.operators, weight)

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
        own = cast(native.Vocabulary, vocabulary)  # a backend is handed what it made
        return native.Pair(self.operators, own, input_norm, feature_norm, eps, residual_is_normed)

    @override
    def children(self, vocabulary: Vocabulary, norm: nn.Cell, names: Parameter, k: int) -> nn.Cell:
        own = cast(native.Vocabulary, vocabulary), cast(native.RMSNorm, norm)
        return native.Children(self.operators, *own, names, k)

    @override
    def choice(self) -> Choice:
        return NativeChoice(self.operators)

    @override
    def settle(self, *cells: nn.Cell) -> None:  # to large memory pages, while the caller goes on
        native.settle(self.operators.library, *cells)

    @override
    def reorder(self, cache: KVCache) -> nn.Cell:
        return _NativeReorder(self.operators, cache)


class NativeChoice(nn.Cell, Choice):
    """Sampling as one kernel: bit for bit the choices of the stock operators."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self.decay = Parameter(DECAY, name="decay", requires_grad=False)
        self.run_sample, self.run_mark = operators.sample(), operators.mark()

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
        return self.run_sample(logits, seen, paths, positions, params, uniforms, self.decay)

    @override
    def remember(self, seen: Parameter, tokens: Tensor, count: Tensor) -> Tensor:
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
        config: LayerConfig,
        read: Read,
        names: LayerNames,
        cache: KVCache,
        index: int,
        normed: bool,
    ) -> None:
        super().__init__()
        eps = config.rms_norm_eps

        def bias(prefix: str, parts: tuple[str, ...], there: bool) -> Weight | None:
            return joined([read(f"{prefix}{part}.bias") for part in parts]) if there else None

        qkv, gate_up = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
        self.attention = native.AttentionBlock(
            operators,
            joined([read(f"{names.attention}{part}.weight") for part in qkv]),
            read(f"{names.attention}o_proj.weight"),
            eps,
            cache.shape,
            norm=read(f"{names.attention_norm}weight") if normed else None,
            qkv_bias=bias(names.attention, qkv, config.qkv_bias),
            out_bias=bias(names.attention, ("o_proj",), config.o_bias),
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
            gate_up_bias=bias(names.mlp, gate_up, config.mlp_bias),
            down_bias=bias(names.mlp, ("down_proj",), config.mlp_bias),
        )
        self.keys, self.values = cache.keys[index], cache.values[index]

    def construct(self, x: Tensor, residual: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        cos, sin, positions, slots, visible = rows
        x = self.attention(x, residual, cos, sin, positions, slots, visible, self.keys, self.values)
        return self.mlp(x)


class _NativeReorder(nn.Cell):
    """One op for all layers; see ``commit.FastReorder`` for the arguments."""

    def __init__(self, operators: Operators, cache: KVCache) -> None:
        super().__init__()
        self.trash = Tensor(np.array([cache.trash], np.int32))
        self.moves = operators.path_slots()
        self.move = native.Commit(operators, ParameterTuple((*cache.keys, *cache.values)), cache.shape)

    def construct(self, path: Tensor, count: Tensor, n: Tensor) -> None:
        self.move(*self.moves(path, count, n, self.trash))
