"""Committing paths: which slots move, for both reorders, against plain numpy."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from ms_eagle.models.commit import CloneReorder, FastReorder, FullReorder, KeepOrder
from ms_eagle.models.kv_cache import KVCache

BATCH, KV_HEADS, SLOTS, D, LAYERS = 3, 2, 14, 4, 2


def filled(seed=0):
    """A cache whose every entry differs."""
    cache = KVCache(LAYERS, BATCH, KV_HEADS, SLOTS, D, ms.float32)
    rng = np.random.default_rng(seed)
    for buffer in (*cache.keys, *cache.values):
        buffer.set_data(Tensor(rng.standard_normal(buffer.shape).astype(np.float32)))
    return cache


def contents(cache):
    return [b.asnumpy().reshape(BATCH, KV_HEADS, SLOTS, D).copy() for b in (*cache.keys, *cache.values)]


def moved(before, path, count, n):
    """The same by a plain loop over copies."""
    after = [b.copy() for b in before]
    for old, new in zip(before, after, strict=True):
        for row in range(BATCH):
            for i in range(count[row]):
                new[row, :, n[row] + i] = old[row, :, n[row] + path[row][i]]
    return after


# Paths that overlap themselves, lie in place already, and a sequence that takes no part.
TABLE = [
    ([[0, 2, 3, 5], [0, 1, 2, 3], [0, 0, 0, 0]], [4, 4, 0], [4, 0, 7]),
    ([[0, 1, 3, 0], [0, 4, 0, 0], [0, 2, 4, 6]], [3, 2, 4], [0, 6, 5]),
    ([[0, 0, 0, 0], [0, 3, 4, 0], [0, 0, 0, 0]], [1, 3, 1], [9, 2, 3]),
]


def clone_reorder(cache):
    return CloneReorder(cache, FastReorder(cache))


@pytest.mark.parametrize("reorder", [FastReorder, FullReorder, clone_reorder])
def test_rows_of_the_path_move_and_no_others(reorder):
    cache = filled()
    cell = reorder(cache)
    for path, count, n in TABLE:
        before = contents(cache)
        cell(*(Tensor(np.array(x, np.int32)) for x in (path, count, n)))
        for got, want in zip(contents(cache), moved(before, path, count, n), strict=True):
            np.testing.assert_array_equal(got, want)
    assert len(cell.compile_cache) == 1


@pytest.mark.parametrize("reorder", [FastReorder, FullReorder])
def test_commit_follows_writes_of_the_same_graph(reorder):
    class WriteThenCommit(nn.Cell):
        def __init__(self, cache):
            super().__init__()
            self.cache, self.reorder = cache, reorder(cache)

        def construct(self, rows, slots, path, count, n):
            where = self.cache.row_numbers(slots)
            total = ops.zeros((), ms.float32)
            for layer in range(LAYERS):
                keys, values = self.cache.write(layer, rows, rows + 1, where)
                total = total + keys.sum() + values.sum()
            self.reorder(path, count, n)
            return total

    cache = filled()
    cell = WriteThenCommit(cache)
    rng = np.random.default_rng(1)
    path, count, n = [[0, 2, 4], [0, 1, 3], [0, 3, 4]], [3, 3, 2], [3, 5, 0]
    for _ in range(3):
        rows = rng.standard_normal((BATCH, KV_HEADS, 5, D)).astype(np.float32)
        before = contents(cache)
        slots = np.array(n)[:, None] + np.arange(5)
        for old in before:
            for b in range(BATCH):
                old[b, :, slots[b]] = (
                    rows[b] + (0 if any(old is k for k in before[:LAYERS]) else 1)
                ).swapaxes(0, 1)
        cell(Tensor(rows), *(Tensor(np.asarray(x, np.int32)) for x in (slots, path, count, n)))
        for got, want in zip(contents(cache), moved(before, path, count, n), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_clone_holds_the_caches_as_they_were():
    cache = filled()
    cell, before = clone_reorder(cache), contents(cache)
    cell(*(Tensor(np.array(x, np.int32)) for x in TABLE[0]))
    for copy, old in zip(cell.copies, before, strict=True):
        np.testing.assert_array_equal(copy.asnumpy().reshape(old.shape), old)


def test_a_chain_stays_where_it_is():
    cache = filled()
    before = contents(cache)
    path, count, n = [[0, 1, 2, 3]] * BATCH, [4, 1, 0], [2, 5, 7]
    KeepOrder(cache)(*(Tensor(np.array(x, np.int32)) for x in (path, count, n)))
    for got, old in zip(contents(cache), before, strict=True):
        np.testing.assert_array_equal(got, old)
