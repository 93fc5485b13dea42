"""Drafting against a slow counterpart that keeps whole sequences: pools, states and caches."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mindspore import Tensor
from support.heads import PLAIN, VOCABULARY, Reference, drafter_cell, int32, random_head, teacher_ends

from ms_eagle.drafters.eagle3.drafter import Eagle3Drafter
from ms_eagle.models.stage import Stage
from ms_eagle.tree.shape import TreeShape

CAPACITY, CHUNK, FEATURES = 12, 4, 72


class Drafting:
    """A drafter for a batch, beside what it should do: one list of pairs (taps, next token) a sequence."""

    def __init__(self, config, shape, batch=2, seed=0):
        self.head, self.ends, self.shape, self.batch = random_head(config, seed), teacher_ends(), shape, batch
        slots = CAPACITY + (shape.depth - 1) * shape.branch + 1
        self.cell = drafter_cell(self.head, self.ends, batch, slots)
        drafter = Eagle3Drafter(self.cell, shape.depth, shape.branch)
        self._propose, self._take = Stage(drafter.propose), Stage(drafter.take)
        self.rng = np.random.default_rng(seed + 1)
        self.restart()

    def restart(self):
        """Begin new sequences; the caches keep what they held."""
        self.state = Tensor(np.zeros((self.batch, self.head.config.hidden_size), np.float32))
        self.taps = [np.zeros((0, FEATURES), np.float32) for _ in range(self.batch)]
        self.tokens = [[] for _ in range(self.batch)]

    def lengths(self):
        return [len(tokens) for tokens in self.tokens]

    def extend(self, counts):
        """Commit ``counts[b]`` random pairs, at most ``CHUNK``; junk fills the padded rows."""
        taps = self.rng.standard_normal((self.batch, CHUNK, FEATURES)).astype(np.float32)
        tokens = self.rng.integers(0, VOCABULARY, (self.batch, CHUNK))
        start = self.lengths()
        self.state = self._take(Tensor(taps), int32(tokens), int32(start), int32(counts), self.state)
        for b, count in enumerate(counts):
            self.taps[b] = np.concatenate([self.taps[b], taps[b, :count]])
            self.tokens[b] += tokens[b, :count].tolist()

    def propose(self, roots, active):
        pool, broken = self._propose(int32(roots), int32(self.lengths()), Tensor(active), self.state)
        return [part.asnumpy() for part in pool], broken.asnumpy()

    def caches(self):
        """Every K and V, ``[L, 2, B, H_kv, S, d]``, copied."""
        cache = self.cell.cache
        return np.array(
            [
                [buffer.asnumpy().reshape(cache.shape) for buffer in pair]
                for pair in zip(cache.keys, cache.values, strict=True)
            ]
        )

    def fresh(self, b):
        """The sequence read from its beginning: the reference, its last logits and feature."""
        reference, count = Reference(self.head, self.ends), len(self.tokens[b])
        if count == 0:  # nothing has been read: the state is zero, and so are its logits
            width = self.head.config.hidden_size
            return reference, np.zeros(self.head.config.draft_vocab_size), np.zeros(width)
        logits, features = reference.run(
            self.tokens[b], range(count), [range(r) for r in range(count)], taps=self.taps[b]
        )
        return reference, logits[count - 1], features[count - 1]

    def slow_pool(self, b, root):
        """The pool of one sequence: ``[P]`` tokens, scores, parents, depths."""
        reference, logits, feature = self.fresh(b)
        n, k = len(self.tokens[b]), self.shape.branch
        pool = [(root, 0.0, 0, 0)]
        # Nodes to forward: pool index, feature of the parent, rows of the drafter they may see.
        beam = []
        for token, own in self._children(logits):
            beam.append((len(pool), feature, list(range(n))))
            pool.append((token, own, 0, 1))
        for depth in range(2, self.shape.depth + 1):
            first_row = reference.rows
            logits, features = reference.run(
                [pool[node][0] for node, _, _ in beam],
                [n + depth - 2] * k,
                [seen for _, _, seen in beam],
                feature=np.array([feature for _, feature, _ in beam]),
            )
            made = []
            for row, (parent, _, seen) in enumerate(beam):
                for token, own in self._children(logits[row]):
                    made.append((len(pool), features[row], [*seen, first_row + row]))
                    pool.append((token, pool[parent][1] + own, parent, depth))
            beam = sorted(made, key=lambda node: (-pool[node[0]][1], node[0]))[:k]
        return [np.array(part) for part in zip(*pool, strict=True)]

    def _children(self, logits):
        log_probs = torch.log_softmax(torch.as_tensor(logits), 0).tolist()
        best = sorted(range(len(log_probs)), key=lambda i: (-log_probs[i], i))[: self.shape.branch]
        ids = range(VOCABULARY) if self.head.d2t is None else self.head.d2t.tolist()
        return [(ids[i], log_probs[i]) for i in best]

    def check_pools(self, roots):
        (tokens, scores, parents, depths), broken = self.propose(roots, [True] * self.batch)
        assert not broken.any()
        assert tokens.shape == (self.batch, 1 + self.shape.pool_size)
        for b, root in enumerate(roots):
            want = self.slow_pool(b, root)
            assert tokens[b].tolist() == want[0].tolist()
            np.testing.assert_allclose(scores[b], want[1], atol=1e-4, rtol=0)
            assert parents[b].tolist() == want[2].tolist()
            assert depths[b].tolist() == want[3].tolist()


HEADS = {
    "plain": {},
    "full vocabulary": {"draft_vocab_size": VOCABULARY, "shares_lm_head": True},
    "raw logits, features normed twice": {"raw_logits": True, "double_norm": True},
    "two layers, normed features": {"num_layers": 2, "norm_output": True, "norm_before_residual": True},
}


@pytest.mark.parametrize("name", HEADS)
def test_pools_of_unequal_sequences(name):
    """Prompt in chunks, draft, commit some, draft: what was drafted before leaves no trace."""
    drafting = Drafting(replace(PLAIN, **HEADS[name]), TreeShape(6, 3, 3))
    drafting.extend([4, 1])
    drafting.extend([3, 0])
    drafting.check_pools([5, 6])
    drafting.extend([1, 3])
    drafting.check_pools([7, 8])
    drafting.extend([4, 0])
    assert drafting.lengths() == [CAPACITY, 4]  # the first sequence's levels end right below the trash slot
    drafting.check_pools([9, 10])


@pytest.mark.parametrize(
    "shape", [TreeShape(1, 1, 1), TreeShape(3, 4, 1), TreeShape(2, 1, 4), TreeShape(9, 2, 16)]
)
def test_pools_of_other_shapes(shape):
    drafting = Drafting(PLAIN, shape, batch=1)
    drafting.extend([3])
    drafting.check_pools([5])


@pytest.fixture(scope="module")
def compiled():
    """Compiled once; the tests that use it also show that one request leaves nothing to the next."""
    return Drafting(replace(PLAIN, num_layers=2), TreeShape(6, 3, 3))


@pytest.fixture
def drafting(compiled):
    compiled.restart()
    return compiled


def test_a_sequence_that_nothing_was_read_of(drafting):
    """With one prompt token the state is zero: the pool is made of ties, and finite."""
    drafting.extend([2, 0])
    drafting.check_pools([5, 6])
    tokens, scores, _, _ = drafting.slow_pool(1, 6)
    assert tokens[1:4].tolist() == drafting.head.d2t[:3].tolist()  # the lowest draft ids
    np.testing.assert_allclose(scores[1:4], -math.log(PLAIN.draft_vocab_size))


def changed_slots(before, after):
    """Slots of each sequence that differ in any layer's K or V."""
    differs = (before != after).any((0, 1, 3, 5))  # [B, S]
    return [np.flatnonzero(row).tolist() for row in differs]


def test_what_is_written(drafting):
    trash = drafting.cell.cache.trash
    before = drafting.caches()
    drafting.extend([3, 0])
    after_extend = drafting.caches()
    assert changed_slots(before, after_extend) == [[0, 1, 2, trash], [trash]]
    drafting.extend([2, 4])
    before = drafting.caches()
    drafting.propose([5, 6], [True, False])
    after = drafting.caches()
    assert changed_slots(before, after) == [[*range(5, 11)], [trash]]
    drafting.propose([5, 6], [False, False])
    assert changed_slots(after, drafting.caches())[0] == [trash]
    before, state = drafting.caches(), drafting.state.asnumpy()
    drafting.extend([0, 0])
    assert changed_slots(before, drafting.caches()) == [[trash], [trash]]
    np.testing.assert_array_equal(drafting.state.asnumpy(), state)


def test_committed_rows_equal_a_fresh_run(drafting):
    """Cache and state after drafts and commits are those of reading the sequence anew."""
    for counts in ([4, 2], [1, 4], [3, 1]):
        drafting.extend(counts)
        drafting.propose([1, 2], [True, True])
    caches = drafting.caches()
    for b, n in enumerate(drafting.lengths()):
        reference, _, feature = drafting.fresh(b)
        for layer, pair in enumerate(reference.past):
            for which, rows in enumerate(pair):
                np.testing.assert_allclose(caches[layer, which, b, :, :n], rows.numpy(), atol=1e-4, rtol=0)
        np.testing.assert_allclose(drafting.state.asnumpy()[b], feature, atol=1e-4, rtol=0)


def test_logits_that_are_nan_are_told():
    drafting = Drafting(PLAIN, TreeShape(6, 3, 3))
    drafting.extend([2, 3])
    state = drafting.state.asnumpy()
    state[1, 0] = np.nan
    drafting.state = Tensor(state)
    (tokens, scores, _, _), broken = drafting.propose([5, 6], [True, True])
    assert broken.tolist() == [False, True]
    assert not np.isnan(scores).any()
    assert ((tokens >= 0) & (tokens < VOCABULARY)).all()
    want = drafting.slow_pool(0, 5)  # the other sequence is as it would be alone
    assert tokens[0].tolist() == want[0].tolist()
