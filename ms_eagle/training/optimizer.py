"""The update of the head's weights, with clipping by the global norm; part of the training graph."""

from collections.abc import Mapping

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_eagle.training.muon import Muon


class Optimizer(nn.Cell):
    """AdamW (arXiv 1711.05101) over all weights, or over those that Muon leaves: vectors and the LM head."""

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        *,
        betas: tuple[float, float],
        decay: float,
        clip: float,
        muon: bool,
    ) -> None:
        """Allocate the moments.

        Args:
            weights: what is trained, by name.
            betas: decay rates of Adam's two moments.
            decay: weight decay of matrices per step and unit of learning rate; 0 leaves it out.
            clip: largest norm of all gradients together; larger ones are scaled down to it.
            muon: matrices but the LM head take Muon's steps.
        """
        super().__init__()
        turned = [muon and each.ndim == 2 and name != "lm_head.weight" for name, each in weights.items()]
        self.by_adam = tuple(i for i, other in enumerate(turned) if not other)
        self.by_muon = tuple(i for i, other in enumerate(turned) if other)
        every = tuple(weights.values())
        self.weights = ParameterTuple(every)
        self.adam = Adam([every[i] for i in self.by_adam], betas, decay)
        self.muon = Muon([every[i] for i in self.by_muon], decay) if muon else nn.Identity()
        self.clip = clip
        self.names = tuple(weights)

    def state(self) -> dict[str, Parameter]:
        """All Parameters of the optimiser: moments and momenta by the weights' names, and Adam's powers."""
        kept = {"power1": self.adam.power1, "power2": self.adam.power2}
        for i, first, second in zip(self.by_adam, self.adam.first, self.adam.second, strict=True):
            kept |= {f"first.{self.names[i]}": first, f"second.{self.names[i]}": second}
        for i in range(len(self.by_muon)):
            kept[f"momentum.{self.names[self.by_muon[i]]}"] = self.muon.momenta[i]
        return kept

    def construct(self, gradients: tuple[Tensor, ...], rate: Tensor) -> Tensor:
        """Take a step of size ``rate`` ``[]``; return the gradients' norm before clipping, ``[]``."""
        square = Tensor(0.0, ms.float32)
        for gradient in gradients:
            square = square + (gradient * gradient).sum()
        norm = ops.sqrt(square)
        shrink = ops.minimum(self.clip / (norm + 1e-6), Tensor(1.0, ms.float32))
        clipped = ()
        for gradient in gradients:
            clipped = (*clipped, gradient * shrink)
        chosen = ()
        for i in self.by_adam:
            chosen = (*chosen, clipped[i])
        done = self.adam(chosen, rate)
        if len(self.by_muon) > 0:
            chosen = ()
            for i in self.by_muon:
                chosen = (*chosen, clipped[i])
            done = ops.depend(done, self.muon(chosen, rate))
        return ops.depend(norm, done)


class Adam(nn.Cell):
    """Adam with decoupled weight decay; matrices decay, vectors do not."""

    def __init__(self, weights: list[Parameter], betas: tuple[float, float], decay: float) -> None:
        super().__init__()
        self.weights = ParameterTuple(tuple(weights))
        self.first = self.weights.clone("first", init="zeros")
        self.second = self.weights.clone("second", init="zeros")
        self.beta1, self.beta2, self.decay = *betas, decay
        self.power1 = Parameter(Tensor(1.0, ms.float32), name="power1", requires_grad=False)
        self.power2 = Parameter(Tensor(1.0, ms.float32), name="power2", requires_grad=False)
        self.update = ops.Adam()

    def construct(self, gradients: tuple[Tensor, ...], rate: Tensor) -> Tensor:
        """Take a step of size ``rate`` ``[]``; returns the first moments' share of the past, ``[]``."""
        power1, power2 = self.power1 * self.beta1, self.power2 * self.beta2
        ops.assign(self.power1, power1)
        ops.assign(self.power2, power2)
        for i in range(len(self.weights)):
            weight = self.weights[i]
            if self.decay > 0.0 and weight.ndim > 1:
                ops.assign(weight, weight * (1.0 - rate * self.decay))
            self.update(
                weight,
                self.first[i],
                self.second[i],
                power1,
                power2,
                rate,
                self.beta1,
                self.beta2,
                1e-8,
                gradients[i],
            )
        return power1
