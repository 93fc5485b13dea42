"""The native CPU kernels as Cells for graph mode: rows in float32, matrices in float32 or as codes.

What a row sees travels as ``visible``, int32 ``[B, N, 2 + X]``: entry ``(prefix, count, slots...)`` means the
slots ``0..prefix-1``, then ``count`` more, in token order. A row that sees nothing gets zeros from attention.
"""

import threading

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from ms_eagle.kernels.formats import StoredWeight, codes
from ms_eagle.kernels.library import ABSENT, PANEL, Library
from ms_eagle.kernels.operators import Operators


class AttentionBlock(nn.Cell):
    """``residual + out(attend(rotate(qkv(norm(x)))))`` over one layer's caches, which it writes.

    Args:
        operators: of the loaded library.
        qkv: weights ``[(H + 2 H_kv) * d, A]``: q, k and v one after another.
        out: weights ``[E, H * d]``.
        eps: of every RMSNorm in the block.
        cache_shape: ``(B, H_kv, S, d)``, see ``ms_eagle.models.kv_cache``.
        norm: ``[A]``, or None when ``x`` comes normed.
        qkv_bias: ``[(H + 2 H_kv) * d]``, or None.
        out_bias: ``[E]``, or None.
        q_norm: ``[d]``, RMSNorm of each query head before the rotation, or None.
        k_norm: the same for keys.
    """

    def __init__(
        self,
        operators: Operators,
        qkv: StoredWeight,
        out: StoredWeight,
        eps: float,
        cache_shape: tuple[int, int, int, int],
        *,
        norm: StoredWeight | None = None,
        qkv_bias: StoredWeight | None = None,
        out_bias: StoredWeight | None = None,
        q_norm: StoredWeight | None = None,
        k_norm: StoredWeight | None = None,
    ) -> None:
        super().__init__()
        self.qkv, self.out = _packed(operators, "qkv", qkv), _packed(operators, "out", out)
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
        gate: StoredWeight,
        up: StoredWeight,
        down: StoredWeight,
        eps: float,
        *,
        norm: StoredWeight | None = None,
        gate_up_bias: StoredWeight | None = None,
        down_bias: StoredWeight | None = None,
    ) -> None:
        super().__init__()
        self.gate_up, self.down = _packed(operators, "gate_up", gate, up), _packed(operators, "down", down)
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
        weight: StoredWeight,
        bias: StoredWeight | None = None,
        *,
        norm: StoredWeight | None = None,
        eps: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = _packed(operators, "weight", weight)
        self.bias, self.norm, self.eps = _vector(bias), _vector(norm), _scalar(eps)
        self.run = operators.linear(weight.shape[0])

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, in] -> [B, N, out]``."""
        return self.run(x, self.norm, self.weight, self.bias, self.eps)


class Vocabulary(nn.Cell):
    """A matrix ``[V, E]`` held once, packed, for embedding, logits and their argmax alike."""

    def __init__(self, operators: Operators, weight: StoredWeight) -> None:
        super().__init__()
        size, width = weight.shape
        self.weight = _packed(operators, "weight", weight)
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

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, N, E] ->`` the lowest id of the largest logit, int32 ``[B, N]``, and whether any is NaN or
        infinite, bool ``[B]``.

        The same bits decide as in ``logits``, which are never written.
        """
        return self.run_argmax(hidden, self.absent, self.weight, self.size, self.eps)


class Pair(nn.Cell):
    """What a drafter's first layer reads: each token's normed embedding beside its normed feature.

    Args:
        operators: of the loaded library.
        vocabulary: the embedding.
        input_norm: ``[A]``; feature_norm: ``[E]``, weights of the two RMSNorms.
        eps: of both.
        residual_is_normed: whether the residual is the normed feature.
    """

    def __init__(
        self,
        operators: Operators,
        vocabulary: Vocabulary,
        input_norm: StoredWeight,
        feature_norm: StoredWeight,
        eps: float,
        residual_is_normed: bool,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.input_norm = _vector(input_norm, "input_norm")
        self.feature_norm = _vector(feature_norm, "feature_norm")
        self.normed, self.eps = Tensor(np.array([residual_is_normed], np.int32)), _scalar(eps)
        self.run = operators.pair()

    def construct(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """int32 ``[B, N]``, ``[B, N, E] -> [B, N, A + E]``, residual ``[B, N, E]``."""
        return self.run(
            tokens,
            features,
            self.vocabulary.weight,
            self.vocabulary.size,
            self.input_norm,
            self.feature_norm,
            self.normed,
            self.eps,
        )


class Children(nn.Cell):
    """Norm, LM head, log-softmax and the ``k`` best of every row in one op; logits never leave it.

    Args:
        operators: of the loaded library.
        vocabulary: the LM head, ``[V, E]``.
        norm: the ``RMSNorm`` in front of it.
        names: int32 ``[V]``, what stands for each column.
        k: how many, up to V.
    """

    def __init__(
        self, operators: Operators, vocabulary: Vocabulary, norm: "RMSNorm", names: Parameter, k: int
    ) -> None:
        super().__init__()
        self.vocabulary, self.norm, self.names = vocabulary, norm, names
        self.run = operators.children(k)

    def construct(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, R, E] ->`` names int32 ``[B, R, k]``, most probable first, and their log-probabilities."""
        return self.run(hidden, self.norm.weight, self.vocabulary.weight, self.names, self.norm.eps)


class RMSNorm(nn.Cell):
    """Root-mean-square norm over the last dimension (arXiv 1910.07467)."""

    def __init__(self, operators: Operators, weight: StoredWeight, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = _vector(weight, "weight"), _scalar(eps)
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


def settle(library: Library, *cells: nn.Cell) -> threading.Thread:
    """Move the weights and caches of loaded Cells to large memory pages, which stream faster.

    It takes a second for half a gigabyte, in which the caller compiles: their content stays what it is.

    Returns:
        the thread that does it, for those who want to wait.
    """
    return library.settle_large(parameter.asnumpy() for cell in cells for parameter in cell.get_parameters())


def _parameter(array: np.ndarray, name: str) -> Parameter:
    # The Parameter makes a copy of its own: one in between would be one too many.
    tensor = Tensor.from_numpy(array) if array.flags.writeable else Tensor(array)
    return Parameter(tensor, name=name, requires_grad=False)


def _packed(operators: Operators, name: str, *weights: StoredWeight) -> Parameter:
    return _parameter(packed(operators.library, *weights), name)


def packed(library: Library, *weights: StoredWeight) -> np.ndarray:
    """The panels of one matrix, or of a pair by turns; of codes where all have codes of one kind."""
    stored = [codes(weight) for weight in weights]
    kinds = {None if each is None else (each.bits, each.minima is None) for each in stored}
    if None not in kinds and len(kinds) == 1:
        return library.pack_codes(*[each for each in stored if each is not None])
    return library.pack(*[weight.dense() for weight in weights])


def _vector(weight: StoredWeight | None, name: str = "vector") -> Parameter | Tensor:
    if weight is None:
        return Tensor(ABSENT)
    return _parameter(np.ascontiguousarray(weight.dense(), np.float32), name)


def _layout(cache_shape: tuple[int, int, int, int]) -> Tensor:
    _, heads, slots, _ = cache_shape
    return Tensor(np.array([heads, slots], np.int32))


def _scalar(value: float) -> Tensor:
    return Tensor(np.array([value], np.float32))


__all__ = [
    "PANEL",
    "AttentionBlock",
    "Children",
    "Commit",
    "Linear",
    "MlpBlock",
    "Operators",
    "Pair",
    "RMSNorm",
    "Vocabulary",
    "packed",
    "settle",
]
