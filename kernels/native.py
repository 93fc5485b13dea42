"""The native CPU kernels as MindSpore operators and Cells for graph mode; float32 throughout.

An op that writes into a cache says so to MindSpore (a write signature and a side effect on memory): the
compiler then hands it the Parameter's own memory, keeps it in program order with every other reader and
writer of that Parameter, and does not drop it when its result is unused. Without that, MindSpore gives the
op a copy as soon as a stock operator updates the same Parameter in one graph.

What a row sees travels as ``visible``, int32 ``[B, N, 2 + X]``: entry ``(prefix, count, slots...)`` means the
slots ``0..prefix-1``, then ``count`` more, in token order. A row that sees nothing gets zeros from attention.
"""

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import signature as sig

from ms_eagle.kernels.library import ABSENT, PANEL, Library

Shapes = Callable[..., Sequence[int] | tuple[Sequence[int], ...]]


class Operators:
    """The operators of one library, each made once and shared by the Cells that call it.

    Every operator checks shapes, dtypes and indices when it runs and raises ``RuntimeError`` with a sentence.
    The inputs are documented in ``cpu/ops.cc``.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        residual_first = ("x", "residual", "norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias")
        rest = ("cos", "sin", "positions", "slots", "visible", "keys", "values", "layout", "eps")
        self.attention_block = self._make(
            "AttentionBlock",
            (*residual_first, *rest),
            lambda _, residual, *others: residual,
            writes=("keys", "values"),
        )
        self.mlp_block = self._make(
            "MlpBlock", ("x", "norm", "gate_up", "gate_up_bias", "down", "down_bias", "eps"), _first
        )
        self.rms_norm = self._make("RmsNormRows", ("x", "weight", "eps"), _first)
        self.attend = self._make("AttendRows", ("q", "keys", "values", "visible"), _first)

    def linear(self, out: int) -> ops.Custom:
        """``(x [B,N,A], norm, weights, bias, eps) -> [B,N,out]``."""
        names = ("x", "norm", "weights", "bias", "eps")
        return self._make("LinearRows", names, lambda x, *_: (x[0], x[1], out))

    def argmax(self) -> ops.Custom:
        """``(x [B,N,A], norm, weights, columns, eps) ->`` int32 ``[B,N]``, bool ``[B,N]``."""
        names = ("x", "norm", "weights", "columns", "eps")
        return self._make("ArgmaxRows", names, lambda x, *_: (x[:2], x[:2]), lambda *_: (ms.int32, ms.bool_))

    def embed(self, width: int) -> ops.Custom:
        """``(tokens [B,N], weights, columns) -> [B,N,width]``."""
        return self._make(
            "EmbedRows",
            ("tokens", "weights", "columns"),
            lambda tokens, *_: (*tokens, width),
            lambda *_: ms.float32,
        )

    def visible(self, room: int) -> ops.Custom:
        """``(mask bool [B,1,N,S]) ->`` int32 ``[B,N,2+room]``; refuses a row of more than ``room`` strays."""
        return self._make(
            "VisibleRows", ("mask",), lambda mask: (mask[0], mask[2], 2 + room), lambda *_: ms.int32
        )

    def tree_lists(self) -> ops.Custom:
        """``(start [B], ancestors [B,D+1,N], valid bool [B,N]) ->`` the ``visible`` of tree rows.

        The same keys in the same order as ``VisibleRows`` finds in ``masks.tree_mask``, without a mask.
        """
        return self._make(
            "TreeLists",
            ("start", "ancestors", "valid"),
            lambda start, ancestors, valid: (*valid, 2 + max(1, ancestors[1] - 1)),
        )

    def level_lists(self) -> ops.Custom:
        """``(start [B], base [B], lineage [B,l,k]) ->`` ``visible`` of a level, see ``masks.level_mask``."""
        return self._make(
            "LevelLists",
            ("start", "base", "lineage"),
            lambda start, base, lineage: (lineage[0], lineage[2], 2 + lineage[1]),
        )

    def chunk_lists(self, rows: int) -> ops.Custom:
        """``(start [B], count [B]) ->`` the ``visible`` of a chunk, see ``masks.causal_mask``."""
        return self._make("ChunkLists", ("start", "count"), lambda start, count: (*start, rows, 3))

    def top(self, k: int) -> ops.Custom:
        """``(x [R,V]) ->`` values ``[R,k]``, columns int32 ``[R,k]``: largest first, lower column on ties."""
        return self._make(
            "TopRows", ("x",), lambda x: ((x[0], k), (x[0], k)), lambda x: (ms.float32, ms.int32)
        )

    def commit(self, caches: int) -> ops.Custom:
        """``(source [B,A], target [B,A], layout, *caches) ->`` int32 ``[1]``; the caches are written."""
        names = tuple(f"cache{i}" for i in range(caches))
        return self._make(
            "CommitRows",
            ("source", "target", "layout", *names),
            lambda *_: (1,),
            lambda *_: ms.int32,
            writes=names,
        )

    def _make(
        self,
        name: str,
        inputs: Sequence[str],
        shape: Shapes,
        dtype: Callable[..., object] | None = None,
        writes: Sequence[str] = (),
    ) -> ops.Custom:
        made = ops.Custom(f"{self.library.path}:{name}", shape, dtype or _first, func_type="aot")
        if writes:
            made.set_signatures(
                [
                    sig.make_sig(each, sig.sig_rw.RW_WRITE if each in writes else sig.sig_rw.RW_READ)
                    for each in inputs
                ]
            )
            made.add_prim_attr("side_effect_mem", True)
        return made


class AttentionBlock(nn.Cell):
    """``residual + out(attend(rotate(qkv(norm(x)))))`` over one layer's caches, which it writes.

    Args:
        operators: of the loaded library.
        qkv: weights ``[(H + 2 H_kv) * d, A]``: q, k and v one after another.
        out: weights ``[E, H * d]``.
        eps: of every RMSNorm in the block.
        cache_shape: ``(B, H_kv, S, d)``, see ``ms_eagle.kv_cache``.
        norm: ``[A]``, or None when ``x`` comes normed.
        qkv_bias: ``[(H + 2 H_kv) * d]``, or None.
        out_bias: ``[E]``, or None.
        q_norm: ``[d]``, RMSNorm of each query head before the rotation, or None.
        k_norm: the same for keys.
    """

    def __init__(
        self,
        operators: Operators,
        qkv: np.ndarray,
        out: np.ndarray,
        eps: float,
        cache_shape: tuple[int, int, int, int],
        *,
        norm: np.ndarray | None = None,
        qkv_bias: np.ndarray | None = None,
        out_bias: np.ndarray | None = None,
        q_norm: np.ndarray | None = None,
        k_norm: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.qkv = _parameter(operators.library.pack(qkv), "qkv")
        self.out = _parameter(operators.library.pack(out), "out")
        self.norm, self.qkv_bias, self.out_bias = _vector(norm), _vector(qkv_bias), _vector(out_bias)
        self.q_norm, self.k_norm, self.eps = _vector(q_norm), _vector(k_norm), _scalar(eps)
        self.layout = _layout(cache_shape)
        self.run = operators.attention_block

    def construct(
        self,
        x: Tensor,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        visible: Tensor,
        keys: Parameter,
        values: Parameter,
    ) -> Tensor:
        """Write the rows' K and V to their slots, then attend.

        Args:
            x: ``[B, N, A]``.
            residual: ``[B, N, E]``; ``x`` itself in an ordinary decoder.
            cos: ``[P, d/2]``, the whole table; sin: the same.
            positions: ``[B, N]`` int32 in ``[0, P)``.
            slots: ``[B, N]`` int32 in ``[0, S)``.
            visible: ``[B, N, 2 + X]`` int32, the module's docstring says what.
            keys: Parameter ``[B, H_kv, S, d]``, or as rows ``[B * H_kv * S, d]``; values: the same.

        Returns:
            ``[B, N, E]``.
        """
        return self.run(
            x,
            residual,
            self.norm,
            self.qkv,
            self.qkv_bias,
            self.q_norm,
            self.k_norm,
            self.out,
            self.out_bias,
            cos,
            sin,
            positions,
            slots,
            visible,
            keys,
            values,
            self.layout,
            self.eps,
        )


class MlpBlock(nn.Cell):
    """``x + down(silu(gate(norm(x))) * up(norm(x)))``.

    Args:
        operators: of the loaded library.
        gate: weights ``[I, E]``; up: the same.
        down: weights ``[E, I]``.
        eps: of the norm.
        norm: ``[E]``, or None.
        gate_up_bias: ``[2 I]``, or None.
        down_bias: ``[E]``, or None.
    """

    def __init__(
        self,
        operators: Operators,
        gate: np.ndarray,
        up: np.ndarray,
        down: np.ndarray,
        eps: float,
        *,
        norm: np.ndarray | None = None,
        gate_up_bias: np.ndarray | None = None,
        down_bias: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.gate_up = _parameter(operators.library.pack_pair(gate, up), "gate_up")
        self.down = _parameter(operators.library.pack(down), "down")
        self.gate_up_bias, self.down_bias = _vector(gate_up_bias), _vector(down_bias)
        self.norm, self.eps = _vector(norm), _scalar(eps)
        self.run = operators.mlp_block

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, E] -> [B, N, E]``."""
        return self.run(x, self.norm, self.gate_up, self.gate_up_bias, self.down, self.down_bias, self.eps)


class Linear(nn.Cell):
    """``x @ weight.T + bias``, with an optional RMSNorm in front; weight ``[out, in]``."""

    def __init__(
        self,
        operators: Operators,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        norm: np.ndarray | None = None,
        eps: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = _parameter(operators.library.pack(weight), "weight")
        self.bias, self.norm, self.eps = _vector(bias), _vector(norm), _scalar(eps)
        self.run = operators.linear(weight.shape[0])

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, in] -> [B, N, out]``."""
        return self.run(x, self.norm, self.weight, self.bias, self.eps)


class Vocabulary(nn.Cell):
    """A matrix ``[V, E]`` held once, packed, for embedding, logits and their argmax alike."""

    def __init__(self, operators: Operators, weight: np.ndarray) -> None:
        super().__init__()
        size, width = weight.shape
        self.weight = _parameter(operators.library.pack(weight), "weight")
        self.size = Tensor(np.array([size], np.int32))
        self.absent, self.eps = Tensor(ABSENT), _scalar(0.0)
        self.run_embed = operators.embed(width)
        self.run_logits, self.run_argmax = operators.linear(size), operators.argmax()

    def embed(self, tokens: Tensor) -> Tensor:
        """int32 ``[B, N]`` in ``[0, V) -> [B, N, E]``."""
        return self.run_embed(tokens, self.weight, self.size)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[B, N, E] -> [B, N, V]``."""
        return self.run_logits(hidden, self.absent, self.weight, self.absent, self.eps)

    def argmax(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, N, E] ->`` the lowest id of the largest logit, int32 ``[B, N]``, and whether any is NaN or
        infinite, bool ``[B, N]``.

        The same bits decide as in ``logits``, which are never written.
        """
        return self.run_argmax(hidden, self.absent, self.weight, self.size, self.eps)


class RMSNorm(nn.Cell):
    """Root-mean-square norm over the last dimension (arXiv 1910.07467)."""

    def __init__(self, operators: Operators, weight: np.ndarray, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = _parameter(weight, "weight"), _scalar(eps)
        self.run = operators.rms_norm

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, E] -> [B, N, E]``."""
        return self.run(x, self.weight, self.eps)


class Commit(nn.Cell):
    """Moves accepted rows of every layer's caches: all are read before any is written.

    Args:
        operators: of the loaded library.
        caches: keys and values of every layer, in any order.
        cache_shape: ``(B, H_kv, S, d)``.
    """

    def __init__(
        self, operators: Operators, caches: ParameterTuple, cache_shape: tuple[int, int, int, int]
    ) -> None:
        super().__init__()
        self.layout = _layout(cache_shape)
        self.caches = caches
        self.run = operators.commit(len(caches))

    def construct(self, source: Tensor, target: Tensor) -> Tensor:
        """Slot ``target[b, i]`` takes what ``source[b, i]`` held; both int32 ``[B, A]`` in ``[0, S)``.

        Returns:
            int32 ``[1]``, the number of rows moved.
        """
        return self.run(source, target, self.layout, *self.caches)


def settle(library: Library, cell: nn.Cell) -> None:
    """Move a loaded Cell's weights and caches to large memory pages, which stream faster; call it once."""
    for parameter in cell.get_parameters():
        library.settle(parameter.asnumpy())


def _first(first: object, *_: object) -> object:
    return first


def _parameter(array: np.ndarray, name: str) -> Parameter:
    return Parameter(Tensor(np.ascontiguousarray(array, np.float32)), name=name, requires_grad=False)


def _vector(array: np.ndarray | None) -> Parameter | Tensor:
    if array is None:
        return Tensor(ABSENT)
    return _parameter(array, "vector")


def _layout(cache_shape: tuple[int, int, int, int]) -> Tensor:
    _, heads, slots, _ = cache_shape
    return Tensor(np.array([heads, slots], np.int32))


def _scalar(value: float) -> Tensor:
    return Tensor(np.array([value], np.float32))


__all__ = [
    "PANEL",
    "AttentionBlock",
    "Commit",
    "Linear",
    "MlpBlock",
    "Operators",
    "RMSNorm",
    "Vocabulary",
    "settle",
]
