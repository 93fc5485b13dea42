"""Muon for matrices: momentum whose direction is made orthogonal, so that all its directions count alike.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); the scaling of the
step to that of Adam is of Moonlight (arXiv 2502.16982, section 2.2).
"""

from collections.abc import Sequence

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

MOMENTUM = 0.95
_ROUNDS = 5
# A quintic that takes singular values of (0, 1] near 1 within five rounds; the source's numbers.
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(nn.Cell):
    """Updates matrices by their orthogonalised momentum."""

    def __init__(self, weights: Sequence[Parameter], decay: float) -> None:
        """Allocate the momenta.

        Args:
            weights: matrices ``[out, in]``.
            decay: weight decay per step and unit of learning rate; 0 leaves it out.
        """
        super().__init__()
        self.weights = ParameterTuple(tuple(weights))
        self.momenta = self.weights.clone("momentum", init="zeros")
        self.decay = decay
        self.outer = ops.MatMul(transpose_b=True)
        self.inner = ops.MatMul()

    def construct(self, gradients: tuple[Tensor, ...], rate: Tensor) -> tuple[Tensor, ...]:
        """Take a step of size ``rate`` ``[]``; returns the new weights."""
        updated = ()
        for i in range(len(self.weights)):
            weight, momentum = self.weights[i], self.momenta[i]
            moved = MOMENTUM * momentum + gradients[i]
            ops.assign(momentum, moved)
            direction = self.orthogonal(gradients[i] + MOMENTUM * moved)  # Nesterov's look ahead
            larger = max(weight.shape)
            step = 0.2 * larger**0.5 * direction
            if self.decay > 0.0:
                step = step + self.decay * weight
            updated = (*updated, ops.assign(weight, weight - rate * step))
        return updated

    def orthogonal(self, matrix: Tensor) -> Tensor:
        """The nearest matrix with equal singular values, roughly, ``[m, n] -> [m, n]``."""
        tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.transpose() if tall else matrix
        x = x / (ops.sqrt((x * x).sum()) + 1e-7)
        for _ in range(_ROUNDS):
            square = self.outer(x, x)
            x = _A * x + self.inner(_B * square + _C * self.inner(square, square), x)
        return x.transpose() if tall else x
