"""Muon against numpy, and what makes it Muon: all directions of an update count alike."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from ms_eagle.training.muon import Muon

SHAPES = ((6, 10), (12, 5))


def numpy_step(weight, momentum, gradient, rate, decay):
    momentum = 0.95 * momentum + gradient
    x = gradient + 0.95 * momentum
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if tall else x
    return weight - rate * (0.2 * max(weight.shape) ** 0.5 * x + decay * weight), momentum, x


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_numpy(decay):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape) for shape in SHAPES]
    momenta = [np.zeros(shape) for shape in SHAPES]
    cell = Muon([Parameter(Tensor(w.astype(np.float32)), name=f"w{i}") for i, w in enumerate(weights)], decay)
    for _ in range(3):
        gradients = [rng.standard_normal(shape) for shape in SHAPES]
        found = cell(tuple(Tensor(g.astype(np.float32)) for g in gradients), Tensor(0.05, ms.float32))
        for i, gradient in enumerate(gradients):
            weights[i], momenta[i], direction = numpy_step(weights[i], momenta[i], gradient, 0.05, decay)
            np.testing.assert_allclose(found[i].asnumpy(), weights[i], atol=1e-4)
            singular = np.linalg.svd(direction, compute_uv=False)
            assert singular.min() > 0.5
            assert singular.max() < 1.5
