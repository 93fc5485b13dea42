"""The steps between a cycle's forwards: native kernels against the stock functions, integer for integer."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mindspore import Parameter, Tensor, nn
from support.sampling_cases import LOGITS, PARAMS, SEEN, UNIFORMS

from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.backends.stock_steps import mask_of
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.sampling.options import params_tensor
from ms_eagle.tree.shape import TreeShape

B, SHAPE, SLOTS = 2, TreeShape(7, 3, 3), 40
K, N, LEVELS = SHAPE.branch, SHAPE.rows, SHAPE.depth + 1


class Steps(nn.Cell):
    """All steps one after another, over given children and choices."""

    def __init__(self, backend):
        super().__init__()
        self.steps = backend.steps(SLOTS)
        self.tensorize = self.steps.tensorizer(SHAPE, -2.4)

    def construct(self, root, tokens, log_probs, n, active, choices, count, faults, x, state):
        pool, beam, broken = self.steps.grow_root(root, tokens[:, :1], log_probs[:, :1])
        placed = ()
        for level in range(SHAPE.depth - 1):
            placed = (*placed, *self.steps.level_rows(n, active, beam[4]))
            rows = slice(1 + level * K, 1 + (level + 1) * K)
            pool, beam, bad = self.steps.grow_level(pool, beam, tokens[:, rows], log_probs[:, rows])
            broken = ms.ops.logical_or(broken, bad)
        tree, rows, paths = self.tensorize(*pool, n, active)
        tokens, parents, depths, _, valid, _, ancestors = tree
        walked = self.steps.accept(tree, choices, active)
        return (
            *(*pool, *beam, broken, *tree, *rows, paths, *walked, *placed),
            *self.steps.tree_rows(tokens, depths, valid, ancestors, n),
            *self.steps.chunk_rows(choices, n, count),
            *self.steps.moves(walked[1], walked[3], n),
            self.steps.report(walked[3], faults, broken, n, walked[2]),
            self.steps.pick(x, parents),
            self.steps.last_row(x, count, state),
        )


@pytest.fixture(scope="module")
def backends():
    try:
        native = NativeBackend(threads=2, strays=8)
    except NativeUnavailable as error:
        pytest.skip(str(error))
    return StockBackend("eager", ms.float32), native


@pytest.fixture(scope="module")
def both(backends):
    cells = [Steps(backend) for backend in backends]
    return lambda arrays: [[part.asnumpy() for part in cell(*map(Tensor, arrays))] for cell in cells]


LOG_PROBS = st.sampled_from([-0.1, -0.5, -0.5, -1.0, -2.5, 0.0, 1e-7, -np.inf, np.nan])


def integers(shape, high, low=0):
    return hnp.arrays(np.int32, shape, elements=st.integers(low, high))


@settings(max_examples=60, deadline=None)
@given(
    root=integers(B, 30),
    tokens=integers((B, 1 + K * (SHAPE.depth - 1), K), 12),
    log_probs=hnp.arrays(np.float32, (B, 1 + K * (SHAPE.depth - 1), K), elements=LOG_PROBS.map(np.float32)),
    n=integers(B, 20),
    active=hnp.arrays(np.bool_, B),
    choices=integers((B, N), 12),
    count=integers(B, N),
    faults=hnp.arrays(np.bool_, B),
)
def test_native_steps_give_the_integers_of_the_stock_ones(both, **drawn):
    noise = np.random.default_rng(0).standard_normal((B, N + 1, 5)).astype(np.float32)
    stock, native = both([*drawn.values(), noise[:, :N], noise[:, N]])
    for want, got in zip(stock, native, strict=True):
        if want.dtype == np.bool_ and want.ndim == 4:
            got = mask_of(got, SLOTS)
        np.testing.assert_array_equal(got, want)


class Sample(nn.Cell):
    def __init__(self, backend):
        super().__init__()
        self.choice = backend.choice()
        self.seen = Parameter(Tensor(np.zeros(SEEN_SHAPE, np.bool_)), name="seen")

    def construct(self, logits, paths, positions, params, uniforms, emitted, count):
        choices, fault = self.choice.sample(logits, self.seen, paths, positions, params, uniforms)
        return choices, fault, self.choice.remember(self.seen, emitted, count)


SEEN_SHAPE = (2, 37)  # of the strategies in test_choice, with three rows a request


@pytest.fixture(scope="module")
def samplers(backends):
    return [Sample(backend) for backend in backends]


@settings(max_examples=150, deadline=None)
@given(
    logits=LOGITS,
    seen=SEEN,
    uniforms=UNIFORMS,
    params=st.tuples(PARAMS, PARAMS),
    paths=integers((2, 2, 3), 36),
    emitted=integers((2, 3), 36),
    count=integers(2, 3),
)
def test_native_sampling_chooses_bit_for_bit(samplers, logits, seen, uniforms, params, paths, emitted, count):
    table = np.concatenate([np.zeros((2, 1), np.float32), uniforms], 1)
    positions = np.tile(np.arange(3, dtype=np.int32), (2, 1))
    found = []
    for cell in samplers:
        cell.seen.set_data(Tensor(seen[:, 0].copy()))
        arrays = (logits, paths, positions, params_tensor(params), table, emitted, count)
        out = [part.asnumpy() for part in cell(*map(Tensor, arrays))]
        found.append((*out, cell.seen.asnumpy().copy()))
    (stock, bad, *rest), (native, faulty, *others) = found
    np.testing.assert_array_equal(faulty, bad)
    np.testing.assert_array_equal(native[~bad], stock[~bad])
    for want, got in zip(rest, others, strict=True):
        np.testing.assert_array_equal(got, want)


def test_masks_from_lists():
    lists = np.array([[[2, 0, 9, 9], [0, 1, 3, 9], [1, 2, 4, 2]]], np.int32)
    kept = ~mask_of(lists, 5)
    assert [np.flatnonzero(row).tolist() for row in kept[0, 0]] == [[0, 1], [3], [0, 2, 4]]
    assert mask_of(kept, 5) is kept
