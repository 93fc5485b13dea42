"""Tree shape and growth: hand-written levels, and random ones against the slow reference."""

from functools import lru_cache

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops
from support.reference_tree import grow

from ms_eagle.errors import UserError
from ms_eagle.tree.growth import grow_level, grow_root, top_children
from ms_eagle.tree.shape import TreeShape, log_confidence

INF = float("inf")


@pytest.fixture(autouse=True, scope="module")
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


class Growth(nn.Cell):
    """All levels at once: children are given instead of computed by a drafter."""

    def construct(self, root, tokens, log_probs, level_tokens, level_log_probs):
        pool, beam, broken = grow_root(root, tokens, log_probs)
        beams = (beam,)
        for level in range(level_tokens.shape[1]):
            pool, beam, more = grow_level(pool, beam, level_tokens[:, level], level_log_probs[:, level])
            broken = ops.logical_or(broken, more)
            beams = (*beams, beam)
        return pool, beams, broken


class RootGrowth(nn.Cell):
    def construct(self, root, tokens, log_probs):
        return grow_root(root, tokens, log_probs)


class Children(nn.Cell):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def construct(self, logits):
        return top_children(logits, self.k)


@lru_cache
def growth():
    return Growth()


@lru_cache
def children(k):
    return Children(k)


def drafts(rng, batch, depth, k, values):
    """Random children: distinct tokens per parent, log-probabilities from a few values."""
    forwards = 1 + (depth - 1) * k
    tokens = rng.permuted(np.tile(np.arange(k + 3), (batch, forwards, 1)), axis=-1)[..., :k].astype(np.int32)
    log_probs = rng.choice(np.array(values, np.float32), (batch, forwards, k))
    return tokens, log_probs


def split(array, depth, k):
    """`[B, 1 + (D-1)*k, k]` as the root's children and the levels'."""
    return array[:, 0], array[:, 1:].reshape(len(array), depth - 1, k, k)


def check_growth(tokens, log_probs, depth, k):
    batch = len(tokens)
    root = np.arange(100, 100 + batch, dtype=np.int32)
    first_tokens, level_tokens = split(tokens, depth, k)
    first_log_probs, level_log_probs = split(log_probs, depth, k)
    arguments = [root, first_tokens, first_log_probs]
    if depth > 1:
        pool, beams, broken = growth()(*map(Tensor, [*arguments, level_tokens, level_log_probs]))
    else:
        pool, beam, broken = RootGrowth()(*map(Tensor, arguments))
        beams = (beam,)
    assert broken.asnumpy().tolist() == [bool(np.isnan(row).any()) for row in log_probs]
    pool = [field.asnumpy() for field in pool]
    assert pool[1].dtype == np.float32
    for b in range(batch):
        levels = [(first_tokens[b], first_log_probs[b])]
        levels += [(level_tokens[b, i], level_log_probs[b, i]) for i in range(depth - 1)]
        levels = [(t, np.where(np.isnan(p), -np.inf, p)) for t, p in levels]
        nodes, forwarded, lineages = grow(root[b], levels)
        expected = [[getattr(n, name) for n in nodes] for name in ("token", "score", "parent", "depth")]
        for found, wanted in zip(pool, expected, strict=True):
            np.testing.assert_array_equal(found[b], wanted)
        for level, beam in enumerate(beams):
            beam_tokens, scores, node, parent_row, lineage = (field.asnumpy()[b] for field in beam)
            assert node.tolist() == forwarded[level]
            assert beam_tokens.tolist() == [nodes[i].token for i in forwarded[level]]
            assert scores.tolist() == [nodes[i].score for i in forwarded[level]]
            assert lineage.T.tolist() == lineages[level]
            assert parent_row.tolist() == ([line[-2] for line in lineages[level]] if level else [0] * k)


class TestShape:
    def test_sizes(self):
        shape = TreeShape(budget=16, depth=6, branch=8)
        assert (shape.rows, shape.pool_size) == (17, 328)

    @pytest.mark.parametrize(
        ("budget", "depth", "branch"), [(1, 1, 1), (8, 8, 1), (10, 1, 10), (328, 6, 8), (1, 6, 8)]
    )
    def test_allowed(self, budget, depth, branch):
        assert TreeShape(budget, depth, branch).rows == budget + 1

    @pytest.mark.parametrize(
        ("budget", "depth", "branch", "words"),
        [
            (0, 1, 1, ["budget", "0", "at least 1"]),
            (1, 0, 1, ["depth", "0", "at least 1"]),
            (1, 1, -2, ["branch", "-2", "at least 1"]),
            (329, 6, 8, ["budget", "329", "328"]),
            (2, 1, 1, ["budget", "2", "1 candidates"]),
            (2.0, 2, 2, ["budget", "2.0", "whole number"]),
            (True, 2, 2, ["budget", "True", "whole number"]),
            (4, "3", 2, ["depth", "'3'", "whole number"]),
        ],
    )
    def test_refused(self, budget, depth, branch, words):
        with pytest.raises(UserError) as error:
            TreeShape(budget, depth, branch)
        for word in words:
            assert word in str(error.value)

    def test_vocabulary(self):
        shape = TreeShape(8, 1, 8)
        shape.check_vocabulary(8)
        with pytest.raises(UserError, match=r"branch is 8.*only 7"):
            shape.check_vocabulary(7)


class TestConfidence:
    def test_values(self):
        assert log_confidence(0) == np.finfo(np.float32).min
        assert log_confidence(1) == 0.0
        assert log_confidence(0.5) == pytest.approx(-0.6931471805599453)

    @pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "0.5", True])
    def test_refused(self, value):
        with pytest.raises(UserError, match=r"tree\.confidence"):
            log_confidence(value)


class TestChildren:
    def test_log_probabilities(self):
        logits = np.log(np.array([[0.1, 0.2, 0.5, 0.2]], np.float32))
        ids, log_probs = (out.asnumpy() for out in children(3)(Tensor(logits)))
        assert ids.tolist() == [[2, 1, 3]]
        np.testing.assert_allclose(np.exp(log_probs), [[0.5, 0.2, 0.2]], rtol=1e-5)

    def test_certain_token_has_probability_one(self):
        logits = np.full((1, 4), -200, np.float32)
        logits[0, 2] = 30
        ids, log_probs = (out.asnumpy() for out in children(3)(Tensor(logits)))
        assert ids.tolist() == [[2, 0, 1]]
        assert log_probs[0, 0] == 0

    @pytest.mark.parametrize("width", [4, 64, 1500])
    @pytest.mark.parametrize("bad", [np.nan, INF])
    def test_broken_rows_are_nan_and_others_are_not(self, width, bad):
        for place in (0, 3, width // 2, width - 1):
            logits = np.random.default_rng(place).normal(size=(3, width)).astype(np.float32)
            logits[1, place] = bad
            logits[2, : width - 3] = -np.inf
            ids, log_probs = (out.asnumpy() for out in children(3)(Tensor(logits)))
            assert np.isnan(log_probs).tolist() == [[False] * 3, [True] * 3, [False] * 3]
            assert ((ids >= 0) & (ids < width)).all()

    def test_nothing_possible(self):
        ids, log_probs = (out.asnumpy() for out in children(3)(Tensor(np.full((1, 9), -np.inf, np.float32))))
        assert np.isnan(log_probs).all()
        assert ((ids >= 0) & (ids < 9)).all()


class TestGrowth:
    def test_two_levels_by_hand(self):
        # Root 9; children 1 (-0.1) and 2 (-1); their children, by row of the forward.
        arguments = (
            np.array([9], np.int32),
            np.array([[1, 2]], np.int32),
            np.array([[-0.125, -1]], np.float32),
            np.array([[[[3, 4], [5, 6]]]], np.int32),
            np.array([[[[-2, -4], [-0.5, -1.125]]]], np.float32),
        )
        pool, beams, broken = growth()(*map(Tensor, arguments))
        tokens, scores, parents, depths = (field.asnumpy()[0].tolist() for field in pool)
        assert tokens == [9, 1, 2, 3, 4, 5, 6]
        assert scores == [0, -0.125, -1, -2.125, -4.125, -1.5, -2.125]
        assert parents == [0, 0, 0, 1, 1, 2, 2]
        assert depths == [0, 1, 1, 2, 2, 2, 2]
        beam_tokens, beam_scores, nodes, parent_rows, lineage = (f.asnumpy()[0].tolist() for f in beams[1])
        assert beam_tokens == [5, 3]  # 3 and 6 tie: the lower pool index
        assert beam_scores == [-1.5, -2.125]
        assert nodes == [5, 3]
        assert parent_rows == [1, 0]
        assert lineage == [[1, 0], [0, 1]]
        assert not broken.asnumpy().any()

    @pytest.mark.parametrize(("batch", "depth", "k"), [(1, 1, 1), (2, 1, 4), (1, 5, 1), (3, 3, 3), (1, 4, 4)])
    def test_shapes(self, batch, depth, k):
        rng = np.random.default_rng(depth * 10 + k)
        check_growth(*drafts(rng, batch, depth, k, -rng.random(50)), depth, k)

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from([0.0, -0.5, -1.0, -INF, -1e-7]), min_size=1))
    def test_ties(self, seed, values):
        check_growth(*drafts(np.random.default_rng(seed), 2, 4, 3, values), 4, 3)

    def test_nan_is_reported_per_element(self):
        tokens, log_probs = drafts(np.random.default_rng(3), 3, 3, 3, [-0.5, -1.0])
        log_probs[1, 5, 2] = np.nan
        check_growth(tokens, log_probs, 3, 3)
        log_probs[2] = np.nan
        check_growth(tokens, log_probs, 3, 3)

    def test_score_never_exceeds_the_parent_s(self):
        # A log-probability that rounding made positive must not lift a child above its parent.
        tokens, log_probs = drafts(np.random.default_rng(4), 1, 3, 3, [1e-6, -1e-8])
        first, levels = split(log_probs, 3, 3)
        first_tokens, level_tokens = split(tokens, 3, 3)
        pool, _, _ = growth()(
            *map(Tensor, [np.zeros(1, np.int32), first_tokens, first, level_tokens, levels])
        )
        _, scores, parents, _ = (field.asnumpy()[0] for field in pool)
        assert (scores <= scores[parents]).all()
        assert scores.max() == 0
