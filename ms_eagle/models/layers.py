"""The small Cells that teacher and drafter share: linear, RMSNorm, SwiGLU MLP and the rotation."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_eagle.models.weight import Weight


def parameter(array: np.ndarray, name: str, dtype: ms.Type) -> Parameter:
    """A frozen Parameter of ``dtype`` that holds ``array``."""
    tensor = Tensor(np.ascontiguousarray(array))
    if tensor.dtype != dtype:
        tensor = tensor.astype(dtype)
    return Parameter(tensor, name=name, requires_grad=False)


def weight_parameter(weight: Weight, name: str, dtype: ms.Type) -> Parameter:
    """A frozen Parameter of ``dtype`` that holds a weight's values."""
    return parameter(weight.dense(), name, dtype)


class Linear(nn.Cell):
    """``x @ weight.T + bias`` over the last dimension; weight ``[out, in]``."""

    def __init__(self, weight: Weight, bias: Weight | None, dtype: ms.Type) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight_parameter(weight, "weight", dtype)
        self.bias = None if bias is None else weight_parameter(bias, "bias", dtype)
        self.multiply = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, in] -> [B, N, out]``."""
        batch, rows, _ = x.shape
        y = self.multiply(x.reshape(batch * rows, self.in_features), self.weight)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(batch, rows, self.out_features)


class RMSNorm(nn.Cell):
    """Root-mean-square norm over the last dimension, computed in float32 (arXiv 1910.07467)."""

    def __init__(self, weight: Weight, eps: float, dtype: ms.Type) -> None:
        super().__init__()
        self.eps = eps
        self.weight = weight_parameter(weight, "weight", dtype)

    def construct(self, x: Tensor) -> Tensor:
        """``[..., E] -> [..., E]`` in the input's dtype."""
        wide = x.astype(ms.float32)
        square = ops.mean(wide * wide, x.ndim - 1, True)
        return (wide * ops.rsqrt(square + self.eps)).astype(x.dtype) * self.weight


class SwiGLU(nn.Cell):
    """``down(silu(gate(x)) * up(x))``, gate and up in one product (arXiv 2002.05202)."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down
        self.width = down.in_features

    def construct(self, x: Tensor) -> Tensor:
        """``[B, N, E] -> [B, N, E]``."""
        both = self.gate_up(x)
        gate, up = both[:, :, : self.width], both[:, :, self.width :]
        return self.down(ops.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves paired as in Hugging Face checkpoints.

    Args:
        x: ``[B, H, N, d]``.
        cos: ``[B, 1, N, d/2]`` float32.
        sin: the same.
    """
    half = x.shape[3] // 2
    wide = x.astype(ms.float32)
    low, high = wide[:, :, :, :half], wide[:, :, :, half:]
    return ops.cat((low * cos - high * sin, high * cos + low * sin), 3).astype(x.dtype)
