"""Choosing and laying out tree rows: hand-written tables, and random pools against the slow reference."""

import math
from functools import lru_cache

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn
from support.reference_tree import Node, tensorize

import ms_eagle.tree.tensorize
from ms_eagle.reference.invariants import check_ancestors, check_tree

INF = float("inf")


@pytest.fixture(autouse=True, scope="module")
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


class Tensorize(nn.Cell):
    def __init__(self, budget, depth):
        super().__init__()
        self.budget = budget
        self.depth = depth

    def construct(self, tokens, scores, parents, depths, log_confidence):
        pool = (tokens, scores, parents, depths)
        return ms_eagle.tree.tensorize.tensorize(pool, self.budget, self.depth, log_confidence)


@lru_cache
def cell(budget, depth):
    return Tensorize(budget, depth)


def random_pool(rng, depth, k, values):
    """A pool as growth leaves it, its next beams chosen at random."""
    pool = [Node(50, np.float32(0), 0, 0)]
    forwarded = [0]
    for level in range(1, depth + 1):
        start = len(pool)
        for parent in forwarded:
            for token in rng.permutation(k + 2)[:k]:
                score = np.float32(pool[parent].score + np.float32(rng.choice(values)))
                pool.append(Node(int(token), score, level, parent))
        forwarded = sorted(rng.choice(np.arange(start, len(pool)), k, replace=False).tolist())
    return pool


def run(pools, budget, depth, confidence=-INF):
    fields = [
        np.array([[getattr(node, name) for node in pool] for pool in pools], dtype)
        for name, dtype in (
            ("token", np.int32),
            ("score", np.float32),
            ("parent", np.int32),
            ("depth", np.int32),
        )
    ]
    outputs = cell(budget, depth)(*map(Tensor, fields), Tensor(confidence, ms.float32))
    return [out.asnumpy() for out in outputs]


def check(pools, budget, depth, confidence=-INF):
    outputs = run(pools, budget, depth, confidence)
    assert [out.dtype for out in outputs] == [np.int32] * 3 + [np.bool_, np.int32, np.float32]
    for b, pool in enumerate(pools):
        for found, wanted in zip(
            outputs, tensorize(pool, budget, depth, np.float32(confidence)), strict=True
        ):
            np.testing.assert_array_equal(found[b], wanted)
    tokens, parents, depths, valid, ancestors, _ = outputs
    check_tree(tokens, parents, depths, valid, 51)
    check_ancestors(ancestors, parents)
    assert valid[:, 0].all()
    return outputs


#     root 50
#     |- 11 (-1)          pool 1
#     |  |- 21 (-1)       pool 3, certain: ties with its parent
#     |  `- 22 (-3)       pool 4
#     `- 12 (-2)          pool 2
#        |- 21 (-2.5)     pool 5
#        `- 23 (-3)       pool 6
HAND = [
    Node(50, np.float32(0), 0, 0),
    Node(11, np.float32(-1), 1, 0),
    Node(12, np.float32(-2), 1, 0),
    Node(21, np.float32(-1), 2, 1),
    Node(22, np.float32(-3), 2, 1),
    Node(21, np.float32(-2.5), 2, 2),
    Node(23, np.float32(-3), 2, 2),
]


class TestByHand:
    def test_five_rows(self):
        tokens, parents, depths, valid, ancestors, scores = check([HAND], 4, 2)
        assert tokens.tolist() == [[50, 11, 12, 21, 21]]
        assert parents.tolist() == [[0, 0, 0, 1, 2]]
        assert depths.tolist() == [[0, 1, 1, 2, 2]]
        assert valid.all()
        assert ancestors.tolist() == [[[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [0, 0, 0, 0, 0]]]
        assert scores.tolist() == [[0, -1, -2, -1, -2.5]]

    def test_last_place_goes_to_the_lower_index(self):
        tokens, parents, *_ = check([HAND], 5, 2)
        assert tokens.tolist() == [[50, 11, 12, 21, 22, 21]]
        assert parents.tolist() == [[0, 0, 0, 1, 1, 2]]

    def test_parent_before_its_certain_child(self):
        tokens, parents, depths, *_ = check([HAND], 1, 2)
        assert (tokens.tolist(), parents.tolist(), depths.tolist()) == ([[50, 11]], [[0, 0]], [[0, 1]])

    def test_confidence_turns_nodes_into_padding_at_the_end(self):
        tokens, parents, depths, valid, ancestors, scores = check([HAND], 4, 2, confidence=-1.5)
        assert tokens.tolist() == [[50, 11, 21, 0, 0]]
        assert parents.tolist() == [[0, 0, 1, 0, 0]]
        assert depths.tolist() == [[0, 1, 2, 0, 0]]
        assert valid.tolist() == [[True, True, True, False, False]]
        assert ancestors.tolist() == [[[0, 1, 2, 3, 4], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]]
        assert scores.tolist() == [[0, -1, -1, 0, 0]]

    def test_confidence_is_met_at_the_threshold(self):
        assert check([HAND], 4, 2, confidence=-1.0)[3].tolist() == [[True, True, True, False, False]]

    def test_confidence_one_keeps_certain_nodes(self):
        certain = [Node(n.token, np.float32(0), n.depth, n.parent) for n in HAND]
        assert check([certain], 4, 2, confidence=0.0)[3].all()
        assert check([HAND], 4, 2, confidence=0.0)[3].tolist() == [[True, False, False, False, False]]

    @pytest.mark.parametrize("score", [0.0, -4.0, -INF])
    def test_all_equal(self, score):
        pool = [HAND[0]] + [Node(n.token, np.float32(score), n.depth, n.parent) for n in HAND[1:]]
        tokens, parents, *_ = check([pool], 4, 2)
        assert tokens.tolist() == [[50, 11, 12, 21, 22]]
        assert parents.tolist() == [[0, 0, 0, 1, 1]]


GRID = [
    (1, 1, 1),
    (1, 1, 4),
    (4, 1, 4),
    (1, 3, 1),
    (3, 3, 1),
    (2, 3, 2),
    (10, 3, 2),
    (39, 5, 3),
    (16, 4, 4),
    (52, 4, 4),
]


@pytest.mark.parametrize(("budget", "depth", "k"), GRID)
def test_grid(budget, depth, k):
    rng = np.random.default_rng(budget)
    pools = [random_pool(rng, depth, k, values) for values in ([0.0, -1.0], -rng.random(99))]
    check(pools, budget, depth)
    check(pools, budget, depth, math.log(0.4))


VALUES = st.lists(st.sampled_from([0.0, -0.5, -1.0, -1e-7, -INF]), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), VALUES, st.sampled_from([-INF, -2.0, -1.0, -0.5, 0.0]))
def test_random_pools_with_ties(seed, values, confidence):
    rng = np.random.default_rng(seed)
    check([random_pool(rng, 4, 3, values) for _ in range(2)], 11, 4, confidence)


def test_confidence_per_batch_element():
    outputs = cell(4, 2)
    fields = [
        np.array([[getattr(n, name) for n in HAND]] * 2, dtype)
        for name, dtype in (
            ("token", np.int32),
            ("score", np.float32),
            ("parent", np.int32),
            ("depth", np.int32),
        )
    ]
    valid = outputs(*map(Tensor, fields), Tensor([[-INF], [-1.5]], ms.float32))[3].asnumpy()
    assert valid.sum(1).tolist() == [5, 3]
