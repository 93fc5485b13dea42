"""The draft vocabulary: whose tokens are counted, which are taken, and how much they cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_eagle.drafters.eagle3.checkpoint import target_ids
from ms_eagle.errors import UserError
from ms_eagle.training.draft_vocabulary import answer_counts, choose


def test_by_hand():
    ids = np.array([7, 7, 3, 3, 5, 5, 1, 1, 1], np.uint16)
    role = np.array([0, 1, 1, 0, 1, 1, 1, 1, 1], np.uint8)
    offsets = np.array([0, 4, 6, 9])
    counts = answer_counts(ids, role, offsets, np.array([0, 1]), 9)
    assert counts.tolist() == [0, 0, 0, 1, 0, 2, 0, 1, 0]  # the third conversation is not counted
    found = choose(counts, 3, always={8})
    assert found.target_ids.tolist() == [3, 5, 8]  # 3 and 7 tie: the lower id
    assert found.target_ids.dtype == np.int32
    assert found.d2t.tolist() == [3, 4, 6]
    assert np.flatnonzero(found.t2d).tolist() == [3, 5, 8]
    assert found.coverage(counts) == 0.75
    assert found.coverage(np.zeros(9, int)) == 0.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=30), st.data())
def test_no_other_choice_covers_more(counts, data):
    counts = np.array(counts)
    always = data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1, max_size=3))
    size = data.draw(st.integers(len(always), len(counts)))
    found = choose(counts, size, always)
    chosen = set(found.target_ids.tolist())
    assert len(chosen) == size
    assert always <= chosen
    left = [counts[i] for i in range(len(counts)) if i not in chosen]
    free = [counts[i] for i in chosen - always]
    assert not left or not free or max(left) <= min(free)
    ids, _ = target_ids(found.d2t, found.t2d, size, len(counts))  # as the reader of heads checks them
    assert ids is None or ids.tolist() == sorted(chosen)


@pytest.mark.parametrize("size", [2, 10])
def test_sizes_that_cannot_be(size):
    with pytest.raises(UserError, match=f"data.draft_vocab_size is {size}; expected 3 .* to 9"):
        choose(np.ones(9, int), size, always={0, 1, 2})
