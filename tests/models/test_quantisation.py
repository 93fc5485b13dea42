"""Floats turned into codes: the documented error, and what is left as it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_eagle.kernels.formats import GROUP
from ms_eagle.models.quantisation import int4, int8, stored_as
from ms_eagle.models.weight import Weight

HALF = np.finfo(np.float16)


def drawn(seed, magnitude):
    rng = np.random.default_rng(seed)
    rows, groups = rng.integers(1, 5, 2)
    values = rng.standard_normal((rows, groups * GROUP)).astype(np.float32) * np.float32(magnitude)
    values[:, : int(rng.integers(GROUP))] *= np.float32(rng.choice([0, 1e-3, 100]))
    return values.clip(-65000, 65000).astype(np.float32)


def repeated(numbers):
    return np.repeat(numbers.astype(np.float64), GROUP, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-9, 1e-4, 0.02, 1, 3e4]))
def test_an_entry_is_off_by_half_of_its_scale_at_most(seed, magnitude):
    values = drawn(seed, magnitude)
    eight = int8(Weight.of(values))
    assert eight.format == "int8"
    assert eight.scales.dtype == np.float16
    assert (np.abs(eight.dense() - values) <= repeated(eight.scales) * 0.5001 + 1e-30).all()
    largest = np.abs(values).reshape(len(values), -1, GROUP).max(2) / 127
    assert (eight.scales.astype(np.float32) <= largest * 1.002 + HALF.smallest_subnormal).all()
    four = int4(Weight.of(values))
    slack = np.abs(repeated(four.minima)) * float(HALF.eps) + float(HALF.smallest_subnormal)
    assert (np.abs(four.dense() - values) <= repeated(four.scales) * 0.5001 + slack).all()


def test_matrices_of_whole_groups_take_the_format_asked_for_and_nothing_else_does():
    matrix, narrow, vector = (Weight.of(np.ones(shape, np.float32)) for shape in ((2, 64), (2, 48), (64,)))
    for asked in ("int8", "int4"):
        assert stored_as(matrix, asked).format == asked
        assert stored_as(narrow, asked) is narrow
        assert stored_as(vector, asked) is vector
    assert stored_as(matrix, "stored") is matrix
    assert stored_as(matrix, "compact").format == "int8"
    assert stored_as(vector, "compact") is vector


def test_codes_are_left_alone_widened_or_made_anew():
    four = int4(Weight.of(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)))
    assert stored_as(four, "stored") is four
    assert stored_as(four, "compact") is four
    assert stored_as(four, "int4") is four
    np.testing.assert_array_equal(stored_as(four, "float32").values, four.dense())
    np.testing.assert_allclose(stored_as(four, "int8").dense(), four.dense(), atol=0.005)


@pytest.mark.parametrize("make", [int8, int4])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_what_codes_cannot_hold_is_refused(make, value):
    values = np.zeros((1, GROUP), np.float32)
    values[0, 3] = value
    with pytest.raises(ValueError, match=r"magnitude (nan|inf|1000000\.0)"):
        make(Weight.of(values))
