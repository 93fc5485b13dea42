"""The tree functions joined as a cycle joins them: every gather's index in range, every invariant kept."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from ms_eagle.reference.invariants import (
    check_ancestors,
    check_indices,
    check_level_mask,
    check_path,
    check_tree,
    check_tree_mask,
)
from ms_eagle.tree.accept import accept, path_slots
from ms_eagle.tree.growth import grow_level, grow_root, top_children
from ms_eagle.tree.masks import level_mask, row_slots, tree_mask
from ms_eagle.tree.shape import TreeShape
from ms_eagle.tree.tensorize import tensorize

VOCABULARY = 700  # long enough for the block search


@pytest.fixture
def checked_gathers(monkeypatch):
    """Run eagerly with gathers that check their indices; returns the names of those called."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    called = set()
    plain_gather, plain_gather_d = ops.gather, ops.gather_d

    def gather(table, index, axis, batch_dims=0):
        called.add("gather")
        check_indices("gather", index.asnumpy(), table.shape[axis])
        return plain_gather(table, index, axis, batch_dims)

    def gather_d(table, dim, index):
        called.add("gather_d")
        check_indices("gather_d", index.asnumpy(), table.shape[dim])
        return plain_gather_d(table, dim, index)

    monkeypatch.setattr(ops, "gather", gather)
    monkeypatch.setattr(ops, "gather_d", gather_d)
    yield called
    ms.set_context(mode=ms.GRAPH_MODE)


def logits_of(rng, kind, rows):
    """Draft logits of one kind, `[rows, VOCABULARY]`."""
    noise = rng.normal(size=(rows, VOCABULARY))
    certain = np.arange(VOCABULARY) == rng.integers(VOCABULARY, size=(rows, 1))
    kinds = {
        "plain": 3 * noise,
        "ties": rng.integers(0, 2, noise.shape),
        "equal": np.zeros_like(noise),
        "certain": np.where(certain, 300.0, 0.0),
        "one token": np.where(certain, 0.0, -np.inf),
        "nan": np.full_like(noise, np.nan),
        "overflow": np.where(certain, np.inf, noise),
        "impossible": np.full_like(noise, -np.inf),
        "one nan": np.where(certain, np.nan, noise),
    }
    return kinds[kind]


KINDS = ["plain", "ties", "equal", "certain", "one token", "nan", "overflow", "impossible", "one nan"]
BROKEN = {"nan", "overflow", "impossible", "one nan"}


@pytest.mark.parametrize("shape", [TreeShape(9, 3, 3), TreeShape(1, 1, 1), TreeShape(21, 3, 3)])
def test_whole_cycle(checked_gathers, shape):
    """One batch element for each kind of logits."""
    rng = np.random.default_rng(shape.budget)
    batch, k, depth, slots = len(KINDS), shape.branch, shape.depth, 40
    start = Tensor(np.linspace(0, slots - shape.rows - 1, batch).astype(np.int32))

    def draft(rows):
        logits = np.concatenate([logits_of(rng, kind, rows) for kind in KINDS])
        return top_children(Tensor(logits.astype(np.float32)), k)

    ids, log_probs = draft(1)
    pool, beam, broken = grow_root(Tensor(np.full(batch, 5, np.int32)), ids, log_probs)
    for _ in range(depth - 1):
        level = level_mask(start, beam[4], slots).asnumpy()
        check_level_mask(level, start.asnumpy(), start.asnumpy(), beam[4].asnumpy())
        ids, log_probs = draft(k)
        children = ids.reshape(batch, k, k), log_probs.reshape(batch, k, k)
        pool, beam, more = grow_level(pool, beam, *children)
        broken = ops.logical_or(broken, more)
    assert broken.asnumpy().tolist() == [kind in BROKEN for kind in KINDS]

    confidence = Tensor([[-2.0 if kind == "plain" else -np.inf] for kind in KINDS], ms.float32)
    tree = tensorize(pool, shape.budget, depth, confidence)
    tokens, parents, depths, valid, ancestors, scores = (x.asnumpy() for x in tree)
    check_tree(tokens, parents, depths, valid, VOCABULARY)
    check_ancestors(ancestors, parents)
    assert (scores <= np.take_along_axis(scores, parents, 1)).all()
    sure = KINDS.index("certain")  # the chain of certain tokens is there as far as the budget goes
    assert ((scores[sure] == 0) & valid[sure]).sum() == min(shape.budget, depth) + 1

    mask = tree_mask(start, tree[4], tree[3], slots).asnumpy()
    check_tree_mask(mask, start.asnumpy(), parents, valid)
    check_indices("slots", row_slots(start, tree[3], slots - 1).asnumpy(), slots)

    # A teacher that follows a random path of the tree.
    choices = np.full_like(tokens, VOCABULARY - 1)
    ends = [rng.choice(np.flatnonzero(valid[b])) for b in range(batch)]
    for b, end in enumerate(ends):
        row = end
        while row:
            choices[b, parents[b, row]] = tokens[b, row]
            row = parents[b, row]
    active = Tensor([True] * batch)
    rows = (*tree[:4], tree[3], tree[5], tree[4])
    accepted, path, emitted, count = accept(rows, Tensor(choices), active)
    check_path(path.asnumpy(), count.asnumpy(), tokens, parents, valid, choices, emitted.asnumpy())
    assert (accepted.asnumpy() >= [depths[b, end] for b, end in enumerate(ends)]).all()
    for where in path_slots(path, count, start, slots - 1):
        check_indices("commit", where.asnumpy(), slots)
    assert checked_gathers == {"gather", "gather_d"}
