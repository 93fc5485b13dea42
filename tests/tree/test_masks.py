"""Masks and slots: hand-written tables, and random trees against the slow reference."""

from functools import lru_cache

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn
from support import reference_tree

from ms_eagle.reference.invariants import check_indices, check_level_mask, check_tree_mask
from ms_eagle.tree import masks


@pytest.fixture(autouse=True, scope="module")
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


class TreeMask(nn.Cell):
    def __init__(self, slots):
        super().__init__()
        self.slots = slots

    def construct(self, start, ancestors, valid, depths):
        return (
            masks.tree_mask(start, ancestors, valid, self.slots),
            masks.row_slots(start, valid, self.slots - 1),
            masks.positions(start, depths),
        )


class CausalMask(nn.Cell):
    def __init__(self, rows, slots):
        super().__init__()
        self.rows = rows
        self.slots = slots

    def construct(self, start, count):
        return masks.causal_mask(start, count, self.rows, self.slots)


class LevelMask(nn.Cell):
    def __init__(self, slots):
        super().__init__()
        self.slots = slots

    def construct(self, start, lineage):
        branch = lineage.shape[2]
        return (
            masks.level_mask(start, lineage, self.slots),
            masks.level_slots(start, lineage.shape[1] - 1, branch),
        )


@lru_cache
def tree_mask(slots):
    return TreeMask(slots)


@lru_cache
def causal_mask(rows, slots):
    return CausalMask(rows, slots)


@lru_cache
def level_mask(slots):
    return LevelMask(slots)


def ancestors_of(parents, depth):
    table = [np.tile(np.arange(parents.shape[1]), (len(parents), 1))]
    for _ in range(depth):
        table.append(np.take_along_axis(parents, table[-1], 1))
    return np.stack(table, 1).astype(np.int32)


def run(starts, parents, valid, depth, slots):
    start, parents, valid = np.array(starts, np.int32), np.array(parents, np.int32), np.array(valid)
    table = ancestors_of(parents, depth)
    depths = (table != 0).sum(1).astype(np.int32)
    out = tree_mask(slots)(*map(Tensor, (start, table, valid, depths)))
    mask, where, positions = (x.asnumpy() for x in out)
    check_tree_mask(mask, start, parents, valid)
    check_indices("slots", where, slots)
    rows = np.arange(parents.shape[1])
    np.testing.assert_array_equal(where, np.where(valid, start[:, None] + rows, slots - 1))
    np.testing.assert_array_equal(positions, start[:, None] + depths)
    for b, n in enumerate(starts):
        np.testing.assert_array_equal(mask[b, 0], reference_tree.tree_mask(n, parents[b], valid[b], slots))
    return mask


def picture(mask):
    """`o` where a key is kept."""
    return ["".join("." if discard else "o" for discard in row) for row in mask]


class TestTreeMask:
    def test_five_rows_by_hand(self):
        # Root with children 1 and 2; 3 under 1, 4 under 2. Three committed slots, ten in all.
        mask = run([3], [[0, 0, 0, 1, 2]], [[True] * 5], 2, 10)
        assert picture(mask[0, 0]) == [
            "oooo......",
            "ooooo.....",
            "oooo.o....",
            "ooooo.o...",
            "oooo.o.o..",
        ]

    def test_padding_sees_the_root_alone(self):
        mask = run([3], [[0, 0, 1, 0, 0]], [[True, True, True, False, False]], 2, 10)
        assert picture(mask[0, 0])[2:] == ["oooooo....", "...o......", "...o......"]

    def test_unequal_lengths_and_an_element_that_takes_no_part(self):
        parents = [[0, 0, 0, 1, 2]] * 4
        valid = [[True] * 5, [True] * 5, [False] * 5, [False] * 5]
        mask = run([0, 4, 4, 9], parents, valid, 2, 10)  # the last stands at the cache's end
        assert picture(mask[0, 0])[3] == "oo.o......"
        assert picture(mask[1, 0])[4] == "ooooo.o.o."
        assert picture(mask[2, 0]) == ["....o....."] * 5
        assert picture(mask[3, 0]) == [".........o"] * 5

    @pytest.mark.parametrize(("rows", "start"), [(1, 0), (1, 7), (5, 0), (5, 3)])
    def test_chain_is_causal(self, rows, start):
        parents = [[max(r - 1, 0) for r in range(rows)]]
        mask = run([start], parents, [[True] * rows], rows - 1, 10)
        causal = causal_mask(rows, 10)(Tensor([start], ms.int32), Tensor([rows], ms.int32)).asnumpy()
        np.testing.assert_array_equal(mask, causal)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_random(self, data):
        rows, slots = 7, 16
        tree = st.tuples(*(st.integers(0, r - 1) for r in range(1, rows)))
        parents = [[0, *data.draw(tree)] for _ in range(2)]
        starts = [data.draw(st.integers(0, slots - rows)) for _ in range(2)]
        counts = [data.draw(st.integers(0, rows)) for _ in range(2)]
        valid = [[r < count for r in range(rows)] for count in counts]
        parents = [
            [p if ok else 0 for p, ok in zip(*pair, strict=True)] for pair in zip(parents, valid, strict=True)
        ]
        run(starts, parents, valid, rows - 1, slots)


class TestCausalMask:
    def test_by_hand(self):
        mask = causal_mask(4, 8)(Tensor([2, 0], ms.int32), Tensor([3, 0], ms.int32)).asnumpy()
        assert picture(mask[0, 0]) == ["ooo.....", "oooo....", "ooooo...", "..o....."]
        assert picture(mask[1, 0]) == ["o......."] * 4

    @settings(max_examples=40, deadline=None)
    @given(st.tuples(st.integers(0, 11), st.integers(0, 11)), st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def test_random(self, starts, counts):
        mask = causal_mask(5, 16)(Tensor(starts, ms.int32), Tensor(counts, ms.int32)).asnumpy()
        assert mask.shape == (2, 1, 5, 16)
        for b in range(2):
            wanted = reference_tree.causal_mask(starts[b], counts[b], 5, 16)
            np.testing.assert_array_equal(mask[b, 0], wanted)


class TestLevelMask:
    def run(self, starts, lineage, slots):
        start, lineage = np.array(starts, np.int32), np.array(lineage, np.int32)
        mask, where = (x.asnumpy() for x in level_mask(slots)(Tensor(start), Tensor(lineage)))
        check_level_mask(mask, start, start, lineage)
        _, levels, branch = lineage.shape
        np.testing.assert_array_equal(where, start[:, None] + (levels - 1) * branch + np.arange(branch))
        check_indices("slots", where, slots)
        for b in range(len(start)):
            wanted = reference_tree.level_mask(starts[b], lineage[b].T.tolist(), slots)
            np.testing.assert_array_equal(mask[b, 0], wanted)
        return mask

    def test_first_level_sees_itself(self):
        mask = self.run([2], [[[0, 1, 2]]], 9)
        assert picture(mask[0, 0]) == ["ooo......", "oo.o.....", "oo..o...."]

    def test_third_level_by_hand(self):
        mask = self.run([2], [[[1, 1], [0, 1], [0, 1]]], 9)
        assert picture(mask[0, 0]) == ["oo.oo.o..", "oo.o.o.o."]

    def test_unequal_lengths(self):
        mask = self.run([4, 0], [[[0, 1], [0, 1]], [[1, 1], [0, 1]]], 9)
        assert picture(mask[0, 0]) == ["ooooo.o..", "oooo.o.o."]
        assert picture(mask[1, 0]) == [".oo......", ".o.o....."]

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 2**32 - 1))
    def test_random(self, seed):
        rng = np.random.default_rng(seed)
        lineage = rng.integers(0, 3, (2, 4, 3))
        lineage[:, 3] = np.arange(3)
        self.run(rng.integers(0, 7, 2), lineage, 20)
