"""Checks of the native kernels over weights of codes, against plain sums in float64."""

import numpy as np
from support.native_cases import ABSENT, EPS, normal, rms_norm, silu, spoil_one_argument

from ms_eagle.kernels.formats import GROUP, codes
from ms_eagle.models.quantisation import int4, int8
from ms_eagle.models.weight import Weight


def plain_int4(weight):
    """Codes of four bits without minima."""
    groups = weight.dense().reshape(weight.shape[0], -1, GROUP)
    scales = (np.abs(groups).max(2) / 7).astype(np.float16)
    values = np.rint(groups / np.maximum(scales, 1e-7)[:, :, None]).clip(-8, 7).astype(np.int8) + 8
    pairs = values.astype(np.uint8).reshape(weight.shape[0], -1, 2)
    return Weight("int4", pairs[:, :, 0] | pairs[:, :, 1] << 4, scales, GROUP)


FORMATS = (int8, int4, plain_int4)


def drawn(rng, out, columns):
    """A weight in one of the formats."""
    values = normal(rng, out, columns)
    values[rng.integers(out), : GROUP // 2] *= 1000  # a group that a coarse scale spoils
    return FORMATS[rng.integers(len(FORMATS))](Weight.of(values))


def rounded(x):
    """Rows as the kernels multiply them: codes -127..127 of groups."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP).astype(np.float32)
    largest = np.abs(groups).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, where=largest > 0, out=np.zeros_like(largest))
    scales = (largest / np.float32(127)).astype(np.float64)
    return (np.rint(groups * inverse) * scales).reshape(x.shape)


def agree(got, x, weight):
    """Within what sums in float32 may differ by."""
    values, left = weight.dense().astype(np.float64), rounded(x)
    size = np.abs(left) @ np.abs(values).T + 1e-30
    assert (np.abs(got - left @ values.T) / size).max() < 1e-5


def check_codes_linear(library, rng):
    batch, rows = int(rng.integers(1, 4)), int(rng.integers(1, 60))
    columns, out = GROUP * int(rng.integers(1, 8)), int(rng.integers(1, 200))
    weight, x = drawn(rng, out, columns), normal(rng, batch, rows, columns)
    x[0, 0] = 0  # no scale
    packed = library.pack_codes(codes(weight))
    y = np.empty((batch, rows, out), np.float32)
    library.call("LinearRows", (x, ABSENT, packed, ABSENT, EPS), (y,))
    agree(y, x, weight)
    b, r = int(rng.integers(batch)), int(rng.integers(rows))
    one = np.empty((1, 1, out), np.float32)
    library.call("LinearRows", (x[b : b + 1, r : r + 1].copy(), ABSENT, packed, ABSENT, EPS), (one,))
    assert one.tobytes() == y[b, r].tobytes(), "a row alone differs from the same row among others"
    best, faulty = np.empty((batch, rows), np.int32), np.ones(batch, bool)
    size = np.array([out], np.int32)
    library.call("ArgmaxRows", (x, ABSENT, packed, size, EPS), (best, faulty))
    np.testing.assert_array_equal(best, y.argmax(2))
    assert not faulty.any()


def check_codes_embedding(library, rng):
    columns, out = GROUP * int(rng.integers(1, 5)), int(rng.integers(1, 100))
    weight = drawn(rng, out, columns)
    tokens, rows = rng.integers(0, out, (2, 3)).astype(np.int32), np.empty((2, 3, columns), np.float32)
    packed = library.pack_codes(codes(weight))
    library.call("EmbedRows", (tokens, packed, np.array([out], np.int32)), (rows,))
    np.testing.assert_array_equal(rows, weight.dense()[tokens])


def check_codes_of_a_pair(library, rng):
    rows, hidden, inner = (int(rng.integers(1, 20)), *(GROUP * int(n) for n in rng.integers(1, 5, 2)))
    gate, up = (int8(Weight.of(normal(rng, inner, hidden))) for _ in range(2))
    down, norm = Weight.of(normal(rng, hidden, inner)), normal(rng, hidden)
    x = normal(rng, 1, rows, hidden)
    y = np.empty_like(x)
    both = library.pack_codes(codes(gate), codes(up))
    down_of_one = library.pack(down.dense())  # a float matrix beside one of codes
    library.call("MlpBlock", (x, norm, both, ABSENT, down_of_one, ABSENT, EPS), (y,))
    left = rounded(rms_norm(x, norm).astype(np.float32))
    between = silu(left @ gate.dense().T) * (left @ up.dense().T)
    want = x + between @ down.dense().T
    np.testing.assert_allclose(y, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())


def check_codes_of_numbers_that_are_not_finite(library, rng):
    weight, x = drawn(rng, 40, 64), normal(rng, 3, 2, 64)
    x[0, 1, int(rng.integers(64))], x[2, 0, int(rng.integers(64))] = np.nan, rng.choice([np.inf, -np.inf])
    best, faulty = np.empty((3, 2), np.int32), np.zeros(3, bool)
    packed = library.pack_codes(codes(weight))
    library.call("ArgmaxRows", (x, ABSENT, packed, np.array([40], np.int32), EPS), (best, faulty))
    assert faulty.tolist() == [True, False, True]
    assert ((best >= 0) & (best < 40)).all()


def check_any_spoiled_codes_are_survived(library, rng):
    packed, x = library.pack_codes(codes(drawn(rng, 20, 64))), normal(rng, 1, 2, 64)
    size, rows = np.array([20], np.int32), np.empty((1, 2, 20), np.float32)
    calls = {
        "LinearRows": ([x, ABSENT, packed, ABSENT, EPS], [rows]),
        "EmbedRows": ([np.array([[3, 19]], np.int32), packed, size], [np.empty_like(x)]),
        "ArgmaxRows": ([x, ABSENT, packed, size, EPS], [np.empty((1, 2), np.int32), np.empty(1, bool)]),
    }
    spoil_one_argument(library, rng, calls)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
