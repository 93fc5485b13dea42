"""How each slot's tokens are chosen, as the tensors that a cycle takes."""

import numpy as np
from mindspore import Tensor

from ms_eagle.sampling.options import SamplingParams, params_tensor
from ms_eagle.sampling.uniforms import uniform_table


class Controls:
    """Sampling numbers ``[B, 15]`` and the uniform of every position ``[B, P]``, on the device."""

    def __init__(self, batch: int, positions: int) -> None:
        self._params = params_tensor([SamplingParams()] * batch)
        self._uniforms = np.zeros((batch, positions), np.float32)
        self._tensors: tuple[Tensor, Tensor] | None = None

    def set(self, row: int, sampling: SamplingParams) -> None:
        """How one slot's tokens are chosen from now on."""
        self._params[row] = params_tensor([sampling])[0]
        self._uniforms[row] = uniform_table(sampling.seed, self._uniforms.shape[1])
        self._tensors = None

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both, as a cycle takes them."""
        if self._tensors is None:
            self._tensors = Tensor(self._params.copy()), Tensor(self._uniforms.copy())
        return self._tensors
