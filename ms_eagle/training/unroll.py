"""The drafter as it is trained: unrolled over its own outputs (EAGLE-3, arXiv 2503.01840, section 3.2).

Step 0 is the head over true features: row ``i`` pairs feature ``i`` with token ``i + 1``. In step ``s`` row
``i`` takes the state that step ``s - 1`` left there for its feature, and token ``i + 1 + s``; it stands at
position ``i + s`` and attends

- the keys of step 0 up to row ``i``, of its own conversation: the committed prefix;
- the keys of steps ``1..s`` at row ``i``: its own chain, and nobody else's.

That is what a chain of draft tokens sees in the inference cache. Later steps need only the rows that a loss
looks at, the *queries*; the others are there for their keys.
"""

from collections.abc import Mapping

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.errors import UserError
from ms_eagle.models.layers import parameter, rotate

_HIDDEN = -1e9  # added to scores: exp of it is 0 in float32, and a row of nothing else stays finite


class Unroll(nn.Cell):
    """A head's trainable weights, and its forward over several steps.

    ``weights()`` names them.
    """

    def __init__(
        self,
        config: HeadConfig,
        embedding: np.ndarray,
        tensors: Mapping[str, np.ndarray],
        *,
        positions: int,
    ) -> None:
        """Take start weights.

        Args:
            config: of the head.
            embedding: the teacher's, ``[V, E]``, frozen.
            tensors: float32 start weights, one for each of ``config.tensor_shapes()``.
            positions: rows of the rotary tables; at least T + S.

        Raises:
            UserError: the head has an option that this trainer does not train.
        """
        super().__init__()
        check_trainable(config)
        self.layers, self.eps = config.num_layers, config.rms_norm_eps
        self.heads, self.kv_heads, self.size = config.num_heads, config.num_kv_heads, config.head_dim
        self.width, self.taps = config.target_hidden_size, config.num_taps
        self.residual_is_normed, self.feature_is_normed = config.norm_before_residual, config.norm_output
        self.norms_taps, self.scale = config.fc_norm, config.head_dim**-0.5
        self.embedding = parameter(embedding, "embedding", ms.float32)
        cos, sin = config.rope.tables(positions)
        self.cos, self.sin = parameter(cos, "cos", ms.float32), parameter(sin, "sin", ms.float32)

        def made(*names: str) -> ParameterTuple:
            return ParameterTuple(
                Parameter(Tensor(np.ascontiguousarray(tensors[name], np.float32)), name=name)
                for name in names
            )

        layers = [f"layers.{i}." for i in range(config.num_layers)]
        (self.fc,), (self.hidden_norm,) = made("fc.weight"), made("layers.0.hidden_norm.weight")
        (self.norm,), (self.lm_head,) = made("norm.weight"), made("lm_head.weight")
        self.fc_norm = made(*(f"fc_norm.{i}.weight" for i in range(config.num_taps * config.fc_norm)))
        self.input_norm = made(*(f"{layer}input_norm.weight" for layer in layers))
        self.post_norm = made(*(f"{layer}post_attention_norm.weight" for layer in layers))
        self.q, self.k, self.v, self.o = (
            made(*(f"{layer}attention.{part}_proj.weight" for layer in layers)) for part in "qkvo"
        )
        self.gate, self.up, self.down = (
            made(*(f"{layer}mlp.{part}_proj.weight" for layer in layers)) for part in ("gate", "up", "down")
        )
        self.multiply = ops.MatMul(transpose_b=True)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()

    def weights(self) -> dict[str, Parameter]:
        """Every trainable Parameter by its name in ``HeadConfig.tensor_shapes``."""
        named = {
            "fc.weight": self.fc,
            "layers.0.hidden_norm.weight": self.hidden_norm,
            "norm.weight": self.norm,
            "lm_head.weight": self.lm_head,
        }
        named |= {f"fc_norm.{i}.weight": each for i, each in enumerate(self.fc_norm)}
        for layer in range(self.layers):
            begin = f"layers.{layer}."
            named |= {
                f"{begin}input_norm.weight": self.input_norm[layer],
                f"{begin}post_attention_norm.weight": self.post_norm[layer],
            }
            for part in "qkvo":
                named[f"{begin}attention.{part}_proj.weight"] = getattr(self, part)[layer]
            for part in ("gate", "up", "down"):
                named[f"{begin}mlp.{part}_proj.weight"] = getattr(self, part)[layer]
        return named

    def construct(
        self,
        taps: Tensor,
        tokens: Tensor,
        segments: Tensor,
        positions: Tensor,
        rows: Tensor,
        step_tokens: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run all S steps.

        Args:
            taps: ``[B, T, F]`` float16 or float32.
            tokens: ``[B, T]`` int32, the token after each row.
            segments: ``[B, T]`` int32, the conversation of each row.
            positions: ``[B, T]`` int32, within the conversation.
            rows: ``[B, Q]`` int32 in ``[0, T)``, the queries.
            step_tokens: ``[B, S, Q]`` int32: token ``i + 1 + s`` of each query, for all S steps.

        Returns:
            for each step the hidden states ``[B, Q, E]`` before the last norm.
        """
        feature, every = self.fuse(taps), self.all_rows(tokens)
        states, prefix, own = (), (), ()
        x, residual = self.enter(feature, tokens)
        for layer in range(self.layers):
            keys, values = self.keys_values(x, layer, positions)
            prefix, own = (*prefix, (keys, values)), (*own, ())
            asked = every
            if layer == self.layers - 1:
                # From here on only the queries matter.
                asked, x, residual = rows, pick(x, rows), pick(residual, rows)
            at = ops.gather_d(positions, 1, asked)
            mixed = self.attend(x, layer, at, self.mask(segments, asked), (keys, values), ())
            residual = self.feed_forward(residual + mixed, layer)
            x = self.between(residual, layer)
        states = (residual,)
        seen, at = self.mask(segments, rows), ops.gather_d(positions, 1, rows)
        for step in range(1, step_tokens.shape[1]):
            residual, own = self.step(residual, step_tokens[:, step], at + step, seen, prefix, own)
            states = (*states, residual)
        return states

    def step(
        self, state: Tensor, tokens: Tensor, at: Tensor, mask: Tensor, prefix: tuple, own: tuple
    ) -> tuple[Tensor, tuple]:
        """A step after the first.

        Args:
            state: ``[B, Q, E]``, of the step before.
            tokens, at: ``[B, Q]`` int32, the tokens that join it and the positions.
            mask: ``[B, 1, 1, Q, T]``.
            prefix: keys and values ``[B, H_kv, T, d]`` of step 0, for each layer.
            own: for each layer, keys and values ``[B, H_kv, Q, d]`` of each step since.

        Returns:
            the new state, and ``own`` with this step's keys and values.
        """
        feature = rms_norm(state, self.norm, self.eps) if self.feature_is_normed else state
        x, residual = self.enter(feature, tokens)
        longer = ()
        for layer in range(self.layers):
            chain = (*own[layer], self.keys_values(x, layer, at))
            longer = (*longer, chain)
            residual = residual + self.attend(x, layer, at, mask, prefix[layer], chain)
            residual = self.feed_forward(residual, layer)
            x = self.between(residual, layer)
        return residual, longer

    def logits(self, state: Tensor) -> Tensor:
        """States ``[R, E] ->`` logits over the draft vocabulary, ``[R, V_d]``."""
        return self.multiply(rms_norm(state, self.norm, self.eps), self.lm_head)

    def fuse(self, taps: Tensor) -> Tensor:
        """Taps to features, ``[B, T, F] -> [B, T, E]``."""
        x = taps.astype(ms.float32)
        if self.norms_taps:
            parts = ()
            for i in range(self.taps):
                part = x[:, :, i * self.width : (i + 1) * self.width]
                parts = (*parts, rms_norm(part, self.fc_norm[i], self.eps))
            x = ops.cat(parts, 2)
        return self.linear(x, self.fc)

    def enter(self, feature: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """First layer's input ``[B, R, 2E]`` and residual ``[B, R, E]``."""
        normed = rms_norm(feature, self.hidden_norm, self.eps)
        embedded = rms_norm(ops.gather(self.embedding, tokens, 0), self.input_norm[0], self.eps)
        return ops.cat((embedded, normed), 2), normed if self.residual_is_normed else feature

    def between(self, residual: Tensor, layer: int) -> Tensor:
        """The next layer's input; after the last layer nobody reads it."""
        if layer == self.layers - 1:
            return residual
        return rms_norm(residual, self.input_norm[layer + 1], self.eps)

    def all_rows(self, tokens: Tensor) -> Tensor:
        """``[B, T]`` int32, every row's own number."""
        batch, length = tokens.shape
        return ops.broadcast_to(ops.arange(length).astype(ms.int32).reshape(1, length), (batch, length))

    def mask(self, segments: Tensor, rows: Tensor) -> Tensor:
        """What to add to scores against the prefix: 0 where ``rows`` see it, ``[B, 1, 1, R, T]``."""
        batch, length = segments.shape
        index = ops.arange(length).astype(ms.int32).reshape(1, 1, length)
        mine = ops.gather_d(segments, 1, rows).expand_dims(2)
        seen = ops.logical_and(index <= rows.expand_dims(2), segments.expand_dims(1) == mine)
        return ((1.0 - seen.astype(ms.float32)) * _HIDDEN).reshape(batch, 1, 1, rows.shape[1], length)

    def keys_values(self, x: Tensor, layer: int, at: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values ``[B, H_kv, R, d]`` of inputs ``[B, R, A]`` at positions ``[B, R]``."""
        keys = self.split(self.linear(x, self.k[layer]), self.kv_heads)
        return self.turn(keys, at), self.split(self.linear(x, self.v[layer]), self.kv_heads)

    def attend(
        self,
        x: Tensor,
        layer: int,
        at: Tensor,
        mask: Tensor,
        prefix: tuple[Tensor, Tensor],
        chain: tuple,
    ) -> Tensor:
        """Attention of rows ``[B, R, A]`` over the prefix and, row by row, their own chain; ``[B, R, E]``."""
        batch, rows, _ = x.shape
        keys, values = prefix
        groups, length = self.heads // self.kv_heads, keys.shape[2]
        q = self.turn(self.split(self.linear(x, self.q[layer]), self.heads), at) * self.scale
        q = q.reshape(batch, self.kv_heads, groups, rows, self.size)
        over = self.scores(q.reshape(batch, self.kv_heads, groups * rows, self.size), keys)
        over = over.reshape(batch, self.kv_heads, groups, rows, length) + mask
        for key, _ in chain:
            over = ops.cat((over, (q * key.expand_dims(2)).sum(4, keepdims=True)), 4)
        share = ops.softmax(over, 4)
        far = share[:, :, :, :, :length].reshape(batch, self.kv_heads, groups * rows, length)
        mixed = self.mix(far, values).reshape(batch, self.kv_heads, groups, rows, self.size)
        for step in range(len(chain)):
            weight = share[:, :, :, :, length + step : length + step + 1]
            mixed = mixed + weight * chain[step][1].expand_dims(2)
        mixed = mixed.reshape(batch, self.heads, rows, self.size).transpose(0, 2, 1, 3)
        return self.linear(mixed.reshape(batch, rows, self.heads * self.size), self.o[layer])

    def feed_forward(self, x: Tensor, layer: int) -> Tensor:
        """The MLP with its norm and residual, ``[B, R, E]``."""
        normed = rms_norm(x, self.post_norm[layer], self.eps)
        inner = ops.silu(self.linear(normed, self.gate[layer])) * self.linear(normed, self.up[layer])
        return x + self.linear(inner, self.down[layer])

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``[B, R, in] -> [B, R, out]``."""
        batch, rows, width = x.shape
        return self.multiply(x.reshape(batch * rows, width), weight).reshape(batch, rows, weight.shape[0])

    def split(self, x: Tensor, heads: int) -> Tensor:
        """``[B, R, heads * d] -> [B, heads, R, d]``."""
        batch, rows, _ = x.shape
        return x.reshape(batch, rows, heads, self.size).transpose(0, 2, 1, 3)

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        """Rotate ``[B, heads, R, d]`` to positions ``[B, R]``."""
        cos, sin = ops.gather(self.cos, at, 0), ops.gather(self.sin, at, 0)
        return rotate(x, cos.expand_dims(1), sin.expand_dims(1))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension (arXiv 1910.07467), differentiable in both."""
    square = ops.mean(x * x, x.ndim - 1, True)
    return x * ops.rsqrt(square + eps) * weight


def pick(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of each sequence: ``[B, T, E]`` by int32 ``[B, Q]`` in ``[0, T) -> [B, Q, E]``."""
    batch, length, width = x.shape
    first = ops.arange(batch).astype(ms.int32).reshape(batch, 1) * length
    return ops.gather(x.reshape(batch * length, width), (rows + first).reshape(rows.size), 0).reshape(
        batch, rows.shape[1], width
    )


def check_trainable(config: HeadConfig) -> None:
    """Refuse a head with options that the trainer leaves out.

    Raises:
        UserError: names them.
    """
    biases = ("fc_bias", "qkv_bias", "o_bias", "mlp_bias")
    others = ("norm_before_fc", "qk_norm", "double_norm", "raw_logits", "own_embedding", "shares_lm_head")
    extras = [name for name in (*biases, *others) if getattr(config, name)]
    if config.hidden_size != config.target_hidden_size:
        extras.append(f"hidden size {config.hidden_size} beside the teacher's {config.target_hidden_size}")
    if extras:
        raise UserError(
            f"the head has {', '.join(extras)}, which training does not support; expected a head as "
            "tools/train_draft.py makes it."
        )
