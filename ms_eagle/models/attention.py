"""Grouped-query attention around a kernel, for the teacher's blocks and the drafter's layers."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_eagle.models.architecture import LayerConfig
from ms_eagle.models.layers import Linear, RMSNorm, rotate
from ms_eagle.models.weight import Read, joined


class Attention(nn.Cell):
    """Grouped-query attention of one layer; q, k and v come from one product."""

    def __init__(self, config: LayerConfig, read: Read, prefix: str, kernel: nn.Cell, dtype: ms.Type) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv = linear(read, prefix, ("q_proj", "k_proj", "v_proj"), config.qkv_bias, dtype)
        self.out = linear(read, prefix, ("o_proj",), config.o_bias, dtype)
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


def linear(read: Read, prefix: str, names: tuple[str, ...], bias: bool, dtype: ms.Type) -> Linear:
    """One Linear whose outputs are those of ``names``, one after another."""
    weight = joined([read(f"{prefix}{name}.weight") for name in names])
    biases = joined([read(f"{prefix}{name}.bias") for name in names]) if bias else None
    return Linear(weight, biases, dtype)
