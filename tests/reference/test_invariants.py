"""Every invariant: holds on a sound example, and is reported by name and place once broken."""

import numpy as np
import pytest

from ms_eagle.reference.invariants import (
    InvariantError,
    check_ancestors,
    check_cache_equal,
    check_cache_kept,
    check_cache_writes,
    check_indices,
    check_level_mask,
    check_output,
    check_path,
    check_tree,
    check_tree_mask,
)

VOCABULARY = 10


def tree():
    """Batch of two: a full tree of five rows and one whose last two rows are padding."""
    return {
        "tokens": np.array([[9, 1, 2, 3, 4], [9, 1, 3, 0, 0]]),
        "parents": np.array([[0, 0, 0, 1, 2], [0, 0, 1, 0, 0]]),
        "depths": np.array([[0, 1, 1, 2, 2], [0, 1, 2, 0, 0]]),
        "valid": np.array([[True] * 5, [True, True, True, False, False]]),
    }


class Broken:
    """Expect an `InvariantError` with this name, whose place and value hold these words."""

    def __init__(self, invariant, *words):
        self.invariant = invariant
        self.words = words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            pytest.fail(f"{self.invariant} was not reported")
        if not issubclass(kind, InvariantError):
            return False
        assert error.invariant == self.invariant
        assert self.invariant in str(error)
        for word in self.words:
            assert word in f"{error.found} at {error.where}"
        return True


class TestIndices:
    def test_sound(self):
        check_indices("slots", np.array([[0, 3]]), 4)

    @pytest.mark.parametrize("value", [-1, 4])
    def test_out_of_range(self, value):
        with Broken("index.range", f"{value} at slots[1, 0]"):
            check_indices("slots", np.array([[0, 1], [value, 2]]), 4)


class TestTree:
    def test_sound(self):
        check_tree(**tree(), vocabulary=VOCABULARY)

    @pytest.mark.parametrize(
        ("field", "place", "value", "invariant", "words"),
        [
            ("parents", (0, 3), 5, "tree.parent_range", ["5 at parents[0, 3]"]),
            ("parents", (0, 3), -1, "tree.parent_range", ["-1 at parents[0, 3]"]),
            ("tokens", (0, 2), VOCABULARY, "tree.token_range", ["10 at tokens[0, 2]"]),
            ("tokens", (1, 2), -1, "tree.token_range", ["-1 at tokens[1, 2]"]),
            ("depths", (0, 0), 1, "tree.root", ["batch 0, row 0"]),
            ("parents", (0, 0), 1, "tree.root", ["parent 1"]),
            ("tokens", (1, 4), 7, "tree.padding", ["token 7", "batch 1, row 4"]),
            ("depths", (1, 3), 1, "tree.padding", ["depth 1", "batch 1, row 3"]),
            ("parents", (1, 3), 1, "tree.padding", ["parent 1", "batch 1, row 3"]),
            ("parents", (1, 2), 3, "tree.orphan", ["row 3", "batch 1, row 2"]),
            ("valid", (0, 0), False, "tree.orphan", ["row 0", "batch 0, row 1"]),
            ("depths", (0, 3), 1, "tree.depth", ["depth 1", "batch 0, row 3"]),
            ("parents", (0, 1), 3, "tree.depth", ["parent of depth 2", "batch 0, row 1"]),
            ("depths", (0, 4), 3, "tree.reach", ["2 hops", "batch 0, row 4"]),
            ("tokens", (0, 2), 1, "tree.siblings", ["token 1", "row 1", "batch 0, row 2"]),
        ],
    )
    def test_broken(self, field, place, value, invariant, words):
        broken = tree()
        broken[field][place] = value
        with Broken(invariant, *words):
            check_tree(**broken, vocabulary=VOCABULARY)

    def test_same_token_under_different_parents_is_sound(self):
        sound = tree()
        sound["tokens"][0, 4] = 3
        check_tree(**sound, vocabulary=VOCABULARY)

    def test_ancestors(self):
        parents = tree()["parents"]
        levels = [np.tile(np.arange(5), (2, 1)), parents, np.take_along_axis(parents, parents, 1)]
        ancestors = np.stack(levels, 1)
        check_ancestors(ancestors, parents)
        for place in [(0, 0, 2), (0, 1, 4), (1, 2, 2)]:
            wrong = ancestors.copy()
            wrong[place] += 1
            with Broken("tree.ancestors", f"ancestors[{place[0]}, {place[1]}, {place[2]}]"):
                check_ancestors(wrong, parents)


class TestTreeMask:
    START = np.array([3, 0])

    def mask(self):
        keys = [
            [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 5, 7]],
            [[0], [0, 1], [0, 1, 2], [0], [0]],
        ]
        mask = np.ones((2, 1, 5, 10), bool)
        for b in range(2):
            for r in range(5):
                mask[b, 0, r, keys[b][r]] = False
        return mask

    def check(self, mask):
        check_tree_mask(mask, self.START, tree()["parents"], tree()["valid"])

    def test_sound(self):
        self.check(self.mask())

    @pytest.mark.parametrize(
        ("place", "words"),
        [
            ((0, 3, 5), ["key 5 kept", "batch 0, row 3"]),  # a row above it that is no ancestor
            ((0, 1, 7), ["key 7 kept", "batch 0, row 1"]),  # a row below it
            ((0, 0, 9), ["key 9 kept", "batch 0, row 0"]),  # the trash slot
            ((1, 4, 1), ["key 1 kept", "batch 1, row 4"]),  # padding sees the root alone
            ((0, 2, 1), ["key 1 discarded", "batch 0, row 2"]),  # committed
            ((0, 4, 5), ["key 5 discarded", "batch 0, row 4"]),  # its parent
            ((0, 4, 7), ["key 7 discarded", "batch 0, row 4"]),  # itself
            ((1, 3, 0), ["key 0 discarded", "batch 1, row 3"]),  # a row without a key
        ],
    )
    def test_one_key_flipped(self, place, words):
        mask = self.mask()
        b, r, slot = place
        mask[b, 0, r, slot] ^= True
        with Broken("mask.keys", *words):
            self.check(mask)

    def test_polarity(self):
        with Broken("mask.keys"):
            self.check(~self.mask())

    def test_shape_and_dtype(self):
        with Broken("mask.shape", "(2, 5, 10)"):
            self.check(self.mask()[:, 0])
        with Broken("mask.dtype", "float32"):
            self.check(self.mask().astype(np.float32))

    def test_cycle_among_parents(self):
        parents = tree()["parents"]
        parents[0, 1] = 3
        with Broken("tree.reach", "cycle"):
            check_tree_mask(self.mask(), self.START, parents, tree()["valid"])


class TestLevelMask:
    START, BASE = np.array([2]), np.array([3])
    LINEAGE = np.array([[[1, 1], [0, 1]]])

    def mask(self):
        mask = np.ones((1, 1, 2, 9), bool)
        mask[0, 0, 0, [0, 1, 4, 5]] = False
        mask[0, 0, 1, [0, 1, 4, 6]] = False
        return mask

    def test_sound(self):
        check_level_mask(self.mask(), self.START, self.BASE, self.LINEAGE)

    @pytest.mark.parametrize(("row", "slot", "word"), [(0, 2, "kept"), (0, 3, "kept"), (1, 6, "discarded")])
    def test_one_key_flipped(self, row, slot, word):
        mask = self.mask()
        mask[0, 0, row, slot] ^= True
        with Broken("mask.keys", f"key {slot} {word}", f"batch 0, level row {row}"):
            check_level_mask(mask, self.START, self.BASE, self.LINEAGE)


class TestPath:
    def example(self):
        """The first element accepts its second branch whole; the second takes no part."""
        example = tree()
        del example["depths"]
        example["choices"] = np.array([[2, 0, 4, 0, 8], [1, 3, 0, 0, 0]])
        example["path"] = np.array([[0, 2, 4], [0, 0, 0]])
        example["count"] = np.array([3, 0])
        example["emitted"] = np.array([[2, 4, 8], [0, 0, 0]])
        return example

    def test_sound(self):
        check_path(**self.example())

    @pytest.mark.parametrize(
        ("field", "place", "value", "invariant", "words"),
        [
            ("path", (0, 1), 5, "index.range", ["5 at path[0, 1]"]),
            ("count", 0, 4, "path.count", ["4", "batch 0"]),
            ("path", (0, 0), 1, "path.root", ["1", "batch 0"]),
            ("path", (0, 2), 3, "path.link", ["row 3", "batch 0, depth 2"]),
            ("valid", (0, 4), False, "path.link", ["row 4", "batch 0, depth 2"]),
            ("choices", (0, 0), 1, "path.match", ["token 2", "batch 0, depth 1"]),
            ("count", 0, 2, "path.longest", ["row 2", "batch 0, depth 1"]),
            ("count", 1, 1, "path.longest", ["row 0", "batch 1, depth 0"]),
            ("emitted", (0, 2), 7, "output.emitted", ["[2, 4, 7]", "batch 0"]),
            ("emitted", (1, 0), 1, "output.emitted", ["[1, 0, 0]", "batch 1"]),
        ],
    )
    def test_broken(self, field, place, value, invariant, words):
        broken = self.example()
        broken[field][place] = value
        with Broken(invariant, *words):
            check_path(**broken)

    def test_root_is_not_its_own_child(self):
        example = self.example()
        example["choices"][0, 0] = 9  # the root's own token
        example["path"][0] = 0
        example["count"][0] = 1
        example["emitted"][0] = [9, 0, 0]
        check_path(**example)


class TestCache:
    def cache(self):
        cache = np.random.default_rng(0).normal(size=(2, 2, 6, 3)).astype(np.float32)
        cache[0, 0, 0, 0] = np.nan
        return cache

    def test_kept_below_n(self):
        before, after = self.cache(), self.cache()
        after[0, :, 3:] = 0
        after[1, :, 1:] = 0
        check_cache_kept("teacher key.0", before, after, np.array([3, 1]))
        after[0, 1, 2, 1] = 5
        with Broken("cache.kept", "5.0", "teacher key.0, batch 0, head 1, slot 2"):
            check_cache_kept("teacher key.0", before, after, np.array([3, 1]))

    def test_a_changed_sign_of_zero_counts(self):
        before = np.zeros((1, 1, 2, 1), np.float16)
        with Broken("cache.kept", "slot 0"):
            check_cache_kept("k", before, -before, np.array([1]))

    def test_writes(self):
        before, after = self.cache(), self.cache()
        written = np.array([[3, 4, 5], [1, 5, 5]])
        for b in range(2):
            after[b][:, written[b]] = 1
        check_cache_writes("drafter value.0", before, after, written)
        after[1, 0, 2] = 7
        with Broken("cache.writes", "7.0", "drafter value.0, batch 1, head 0, slot 2"):
            check_cache_writes("drafter value.0", before, after, written)
        with Broken("index.range", "6 at drafter value.0 slots[1, 2]"):
            check_cache_writes("drafter value.0", before, after, np.array([[3, 4, 5], [1, 2, 6]]))

    def test_equal_to_a_fresh_run(self):
        cache = np.ones((2, 1, 4, 2), np.float32)
        fresh = np.ones((2, 1, 3, 2), np.float32)
        cache[0, 0, 2] = 9  # past the length
        length = np.array([2, 3])
        check_cache_equal("k", cache, fresh, length)
        cache[1, 0, 2, 1] += 1e-5
        with Broken("cache.equal", "k, batch 1, head 0, slot 2"):
            check_cache_equal("k", cache, fresh, length)
        check_cache_equal("k", cache, fresh, length, tolerance=1e-4)
        cache[0, 0, 0, 0] = np.nan
        with Broken("cache.equal", "nan", "slot 0"):
            check_cache_equal("k", cache, fresh, length, tolerance=1e-4)


class TestOutput:
    def test_equal(self):
        check_output([1, 2], [1, 2], "prompt 1, turn 0")
        with Broken("output.equal", "token 3 at prompt 1, turn 0, token 1"):
            check_output([1, 3], [1, 2], "prompt 1, turn 0")
        with Broken("output.equal", "1 tokens"):
            check_output([1], [1, 2], "prompt 1, turn 0")
