"""Acceptance: hand-written trees, and random ones against a plain walk from the root."""

from functools import lru_cache

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn
from support import reference_tree

from ms_eagle.reference.invariants import check_indices, check_path
from ms_eagle.tree.accept import accept, path_slots

START, TRASH = 20, 63


@pytest.fixture(autouse=True, scope="module")
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


class Accept(nn.Cell):
    def construct(self, tokens, parents, depths, valid, ancestors, choices, active, start):
        tree = (tokens, parents, depths, valid, valid, tokens, ancestors)
        accepted, path, emitted, count = accept(tree, choices, active)
        sources, destinations = path_slots(path, count, start, TRASH)
        return accepted, path, emitted, count, sources, destinations


@lru_cache
def cell():
    return Accept()


def run(tokens, parents, choices, depth, valid=None, active=None):
    """Run a batch and compare every element with the reference walk; returns its outputs as lists."""
    tokens, parents, choices = (np.array(x, np.int32) for x in (tokens, parents, choices))
    batch, rows = tokens.shape
    valid = np.ones((batch, rows), np.bool_) if valid is None else np.array(valid)
    active = np.ones(batch, np.bool_) if active is None else np.array(active)
    table = [np.tile(np.arange(rows), (batch, 1))]
    for _ in range(depth):
        table.append(np.take_along_axis(parents, table[-1], 1))
    ancestors = np.stack(table, 1).astype(np.int32)
    depths = (ancestors != 0).sum(1).astype(np.int32)
    start = np.arange(START, START + batch, dtype=np.int32)
    out = cell()(*map(Tensor, (tokens, parents, depths, valid, ancestors, choices, active, start)))
    accepted, path, emitted, count, sources, destinations = (x.asnumpy() for x in out)
    for b in range(batch):
        if active[b]:
            wanted = reference_tree.accept(tokens[b], parents[b], valid[b], choices[b], depth)
        else:
            zeros = np.zeros(depth + 1, np.int32)
            wanted = (0, zeros, zeros, 0)
        for found, expected in zip((accepted, path, emitted, count), wanted, strict=True):
            np.testing.assert_array_equal(found[b], expected)
        used = np.arange(depth + 1) < count[b]
        np.testing.assert_array_equal(sources[b], np.where(used, start[b] + path[b], TRASH))
        np.testing.assert_array_equal(destinations[b], np.where(used, start[b] + np.arange(depth + 1), TRASH))
    check_indices("sources", sources, TRASH + 1)
    check_path(path, count, tokens, parents, valid, choices, emitted)
    return [x.tolist() for x in (accepted, path, emitted, count, sources, destinations)]


#  root 9 -> row 1 (token 1), row 2 (token 2); row 3 (token 3) under 1, row 4 (token 4) under 2
TOKENS = [9, 1, 2, 3, 4]
PARENTS = [0, 0, 0, 1, 2]


class TestByHand:
    def test_match_on_the_second_branch_only(self):
        accepted, path, emitted, count, sources, destinations = run([TOKENS], [PARENTS], [[2, 3, 4, 7, 8]], 2)
        assert (accepted, path, count) == ([2], [[0, 2, 4]], [3])
        assert emitted == [[2, 4, 8]]
        assert sources == [[20, 22, 24]]
        assert destinations == [[20, 21, 22]]

    def test_match_on_the_first_branch(self):
        accepted, path, emitted, *_ = run([TOKENS], [PARENTS], [[1, 3, 4, 7, 8]], 2)
        assert (accepted, path, emitted) == ([2], [[0, 1, 3]], [[1, 3, 7]])

    def test_no_match(self):
        accepted, path, emitted, count, sources, destinations = run([TOKENS], [PARENTS], [[5, 3, 4, 7, 8]], 2)
        assert (accepted, path, count) == ([0], [[0, 0, 0]], [1])
        assert emitted == [[5, 0, 0]]
        assert sources == destinations == [[START, TRASH, TRASH]]

    def test_a_match_below_a_mismatch_does_not_count(self):
        accepted, *_ = run([TOKENS], [PARENTS], [[5, 3, 4, 7, 8]], 2)
        assert accepted == [0]
        accepted, path, *_ = run([TOKENS], [PARENTS], [[1, 6, 4, 7, 8]], 2)
        assert (accepted, path) == ([1], [[0, 1, 0]])

    def test_end_of_sequence_is_a_token_like_any_other(self):
        # Token 2 may well be the end of sequence: what stops the text is the host's business.
        accepted, _, emitted, _, _, _ = run([TOKENS], [PARENTS], [[2, 3, 2, 7, 8]], 2)
        assert (accepted, emitted) == ([1], [[2, 2, 0]])

    def test_token_zero_is_a_match_and_padding_is_not(self):
        tokens, parents = [[9, 0, 0, 0, 0]], [[0, 0, 1, 0, 0]]
        valid = [[True, True, True, False, False]]
        accepted, path, emitted, count, _, _ = run(tokens, parents, [[0, 0, 0, 0, 0]], 2, valid)
        assert (accepted, path, emitted, count) == ([2], [[0, 1, 2]], [[0, 0, 0]], [3])
        valid = [[True, False, False, False, False]]
        accepted, _, _, count, _, _ = run([[9, 0, 0, 0, 0]], [[0] * 5], [[0] * 5], 2, valid)
        assert (accepted, count) == ([0], [1])

    def test_root_matching_its_own_choice_is_no_match(self):
        accepted, path, *_ = run([[9, 1, 2, 3, 4]], [PARENTS], [[9, 9, 9, 9, 9]], 2)
        assert (accepted, path) == ([0], [[0, 0, 0]])

    def test_batch_with_a_finished_element(self):
        accepted, path, emitted, count, sources, destinations = run(
            [TOKENS] * 3, [PARENTS] * 3, [[2, 3, 4, 7, 8], [2, 3, 4, 7, 8], [1, 6, 4, 7, 8]], 2,
            active=[True, False, True],
        )  # fmt: skip
        assert accepted == [2, 0, 1]
        assert count == [3, 0, 2]
        assert emitted == [[2, 4, 8], [0, 0, 0], [1, 6, 0]]
        assert path[1] == [0, 0, 0]
        assert sources[1] == destinations[1] == [TRASH] * 3


@pytest.mark.parametrize("choice", [3, 4])
def test_one_node(choice):
    accepted, _, emitted, count, _, _ = run([[9, 3]], [[0, 0]], [[choice, 7]], 1)
    hit = choice == 3
    assert (accepted, count) == ([int(hit)], [1 + hit])
    assert emitted == [[3, 7] if hit else [4, 0]]


def test_root_alone():
    assert run([[9]], [[0]], [[5]], 1)[:4] == [[0], [[0, 0]], [[5, 0]], [1]]


@pytest.mark.parametrize("depth", [1, 16])
def test_chain_accepted_whole(depth):
    tokens = np.arange(depth + 1)[None]
    accepted, path, emitted, *_ = run(tokens, np.maximum(tokens - 1, 0), tokens + 1, depth)
    assert accepted == [depth]
    assert path == tokens.tolist()
    assert emitted == (tokens + 1).tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_trees(seed):
    rng = np.random.default_rng(seed)
    batch, rows, depth, vocab = 3, 9, 4, 4
    tokens, parents = np.zeros((batch, rows), int), np.zeros((batch, rows), int)
    valid = np.zeros((batch, rows), bool)
    for b in range(batch):
        level, used = [0], set()
        valid[b, 0] = True
        for row in range(1, 1 + rng.integers(0, rows)):
            free = [
                (p, t) for p in range(row) if level[p] < depth for t in range(vocab) if (p, t) not in used
            ]
            parent, token = free[rng.integers(len(free))]
            used.add((parent, token))
            level.append(level[parent] + 1)
            tokens[b, row], parents[b, row], valid[b, row] = token, parent, True
    choices = rng.integers(0, vocab, (batch, rows))
    run(tokens, parents, choices, depth, valid, rng.random(batch) < 0.8)
