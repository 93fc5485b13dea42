"""AdamW over the head's weights, with clipping by the global norm; part of the training graph."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class AdamW(nn.Cell):
    """Adam with decoupled weight decay (arXiv 1711.05101); matrices decay, vectors do not."""

    def __init__(
        self, weights: Sequence[Parameter], *, betas: tuple[float, float], decay: float, clip: float
    ) -> None:
        """Allocate the moments.

        Args:
            weights: what is trained.
            betas: decay rates of the two moments.
            decay: weight decay per step and unit of learning rate; 0 leaves it out.
            clip: largest norm of all gradients together; larger ones are scaled down to it.
        """
        super().__init__()
        self.weights = ParameterTuple(tuple(weights))
        self.first = self.weights.clone("first", init="zeros")
        self.second = self.weights.clone("second", init="zeros")
        self.beta1, self.beta2, self.decay, self.clip = *betas, decay, clip
        self.power1 = Parameter(Tensor(1.0, ms.float32), name="power1", requires_grad=False)
        self.power2 = Parameter(Tensor(1.0, ms.float32), name="power2", requires_grad=False)
        self.adam = ops.Adam()

    def construct(self, gradients: tuple[Tensor, ...], rate: Tensor) -> Tensor:
        """Take a step of size ``rate`` ``[]``; return the gradients' norm before clipping, ``[]``."""
        square = Tensor(0.0, ms.float32)
        for gradient in gradients:
            square = square + (gradient * gradient).sum()
        norm = ops.sqrt(square)
        shrink = ops.minimum(self.clip / (norm + 1e-6), Tensor(1.0, ms.float32))
        power1, power2 = self.power1 * self.beta1, self.power2 * self.beta2
        ops.assign(self.power1, power1)
        ops.assign(self.power2, power2)
        for i in range(len(self.weights)):
            weight = self.weights[i]
            if self.decay > 0.0 and weight.ndim > 1:
                ops.assign(weight, weight * (1.0 - rate * self.decay))
            self.adam(
                weight,
                self.first[i],
                self.second[i],
                power1,
                power2,
                rate,
                self.beta1,
                self.beta2,
                1e-8,
                gradients[i] * shrink,
            )
        return norm
