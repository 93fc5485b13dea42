"""Top k with ties to the lower index, against numpy's stable sort."""

from functools import lru_cache

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mindspore import Tensor, nn

from ms_eagle.tree.topk import BLOCK_FROM, top_k

INF = float("inf")


@pytest.fixture(autouse=True, scope="module")
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


class TopK(nn.Cell):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def construct(self, x):
        return top_k(x, self.k)


@lru_cache
def cell(k):
    return TopK(k)


def check(x, k):
    values, indices = (out.asnumpy() for out in cell(k)(Tensor(x)))
    expected = np.argsort(-x, -1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))
    assert indices.dtype == np.int32


def rows_of(rng, rows, width):
    """Rows of several kinds: distinct, many ties, all equal, nearly all -inf, one peak at the end."""
    kinds = [
        rng.normal(size=(rows, width)),
        rng.integers(-2, 1, (rows, width)),
        np.zeros((rows, width)),
        np.full((rows, width), -np.inf),
        np.where(rng.random((rows, width)) < 2 / width, 0.0, -np.inf),
        np.where(np.arange(width) == width - 1, 1.0, np.zeros((rows, 1))),
    ]
    return [kind.astype(np.float32) for kind in kinds]


@pytest.mark.parametrize(
    ("rows", "width", "k"),
    [
        (1, 1, 1),
        (2, 6, 6),
        (3, 64, 8),
        (2, BLOCK_FROM, 4),
        (2, BLOCK_FROM + 1, 1),  # 513: no block length divides it well, so blocks are padded
        (8, 8192, 8),
        (2, 4999, 3),  # a prime
        (1, 32000, 16),
        (1, 153376, 10),  # 32 x a prime
    ],
)
def test_equals_stable_sort(rows, width, k):
    for x in rows_of(np.random.default_rng(width), rows, width):
        check(x, k)


def test_k_equal_to_a_long_width():
    check(np.random.default_rng(0).integers(-3, 1, (1, 600)).astype(np.float32), 600)


@pytest.mark.parametrize("width", [20, 1200])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_nan_keeps_indices_distinct_and_in_range(width, share):
    rng = np.random.default_rng(width)
    x = np.where(rng.random((4, width)) < share, np.nan, rng.integers(0, 3, (4, width))).astype(np.float32)
    x[3] = rng.integers(0, 3, width)  # a clean row is not disturbed by the others
    indices = cell(5)(Tensor(x))[1].asnumpy()
    assert ((indices >= 0) & (indices < width)).all()
    assert [len(set(row)) for row in indices.tolist()] == [5] * 4
    np.testing.assert_array_equal(indices[3], np.argsort(-x[3], kind="stable")[:5])


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (2, 20), elements=st.sampled_from([0.0, -0.0, -1.0, -2.5, -INF])), st.data())
def test_short_rows(x, data):
    check(x, data.draw(st.sampled_from([1, 3, 20])))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 1000]))
def test_long_rows(seed, kinds):
    rng = np.random.default_rng(seed)
    check(-rng.integers(0, kinds, (2, 1200)).astype(np.float32), 5)
