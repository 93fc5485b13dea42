"""Weights from checkpoint to kernel: formats, their exact values, and kernels that there are not."""

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.models.weight import Weight, joined


def quantised(kind, rows=6, columns=64, group=16, seed=0):
    """A random weight with codes, and its values by the formula, one entry after another."""
    rng = np.random.default_rng(seed)
    least, most = (-128, 127) if kind == "int8" else (-8, 7)
    codes = rng.integers(least, most + 1, (rows, columns))
    scales = rng.standard_normal((rows, columns // group)).astype(np.float32)
    stored = codes.astype(np.int8)
    if kind == "int4":
        stored = np.zeros((rows, columns // 2), np.uint8)
        for row, column in np.ndindex(rows, columns):
            stored[row, column // 2] |= (codes[row, column] + 8) << 4 * (column % 2)
    values = np.zeros((rows, columns), np.float32)
    for row, column in np.ndindex(rows, columns):
        values[row, column] = scales[row, column // group] * np.float32(codes[row, column])
    return Weight(kind, stored, scales, group), values


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_codes_and_scales_give_exactly_the_documented_values(kind):
    weight, values = quantised(kind)
    assert weight.shape == values.shape
    assert weight.dense().tobytes() == values.tobytes()
    other, others = quantised(kind, rows=3, seed=1)
    assert joined([weight, other]).dense().tobytes() == np.concatenate([values, others]).tobytes()
    assert joined([weight, other]).format == kind


def test_bfloat16_is_widened_exactly():
    tensor = torch.randn(5, 7).to(torch.bfloat16)
    weight = Weight("bfloat16", tensor.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(weight.dense(), tensor.float().numpy())


def test_floats_are_not_copied():
    for dtype in (np.float32, np.float16):
        values = np.ones((3, 4), dtype)
        weight = Weight.of(values)
        assert weight.dense() is values
        assert joined([weight]) is weight


def test_floats_of_several_formats_are_joined_by_value():
    one, two = np.full((1, 2), 1.5, np.float32), np.full((2, 2), 2.5, np.float16)
    assert joined([Weight.of(one), Weight.of(two)]).dense().tolist() == [[1.5, 1.5], [2.5, 2.5], [2.5, 2.5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float32", np.zeros(2, np.float16)), "a weight of float16 in format float32; expected float32"),
        (("int8", np.zeros((2, 4), np.int8)), "format int8 without scales"),
        (("float32", np.zeros((2, 4), np.float32), np.zeros((2, 2), np.float32), 2), "float32 with scales"),
        (("int8", np.zeros((2, 4), np.int8), np.zeros((2, 1), np.float32), 3), r"\(2, 4\).*groups of 3"),
        (("int4", np.zeros((2, 4), np.uint8), np.zeros((2, 2), np.float32), 2), r"\(2, 8\).*groups of 2"),
    ],
)
def test_what_does_not_belong_together_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Weight(*arguments)


@pytest.fixture(params=["native", "eager"])
def backend(request):
    if request.param == "eager":
        return StockBackend("eager", ms.float32)
    try:
        return NativeBackend(threads=1, strays=1)
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_codes_in_groups_that_kernels_lack_are_computed_with_as_values(backend, kind):
    weight, values = quantised(kind, group=16)
    identity = ms.Tensor(np.eye(64, dtype=np.float32)[None])
    np.testing.assert_array_equal(backend.linear(weight, None)(identity).asnumpy()[0], values.T)


def test_stored_halves_are_computed_with(backend):
    x = ms.Tensor(np.eye(4, dtype=np.float32)[None])
    values = np.arange(12, dtype=np.float16).reshape(3, 4) / 8
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for weight in (Weight.of(values), Weight("bfloat16", bits)):
        got = backend.linear(weight, Weight.of(np.ones(3, np.float32)))(x).asnumpy()
        np.testing.assert_array_equal(got[0], values.T + 1)
