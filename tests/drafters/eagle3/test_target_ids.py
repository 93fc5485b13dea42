"""The maps between draft and target vocabulary that heads bring along, written out by hand."""

import numpy as np
import pytest

from ms_eagle.drafters.eagle3.checkpoint import target_ids
from ms_eagle.errors import UserError


def test_target_ids_by_hand():
    ids, notes = target_ids(np.array([0, 2, 2]), np.array([1, 0, 0, 1, 1], np.uint8), 3, 5)
    assert ids.tolist() == [0, 3, 4]
    assert ids.dtype == np.int32
    assert notes == []
    ids, _ = target_ids(np.array([4, 0, -2]), None, 3, 5)  # Model-Optimizer: by frequency, not ascending
    assert ids.tolist() == [4, 1, 0]
    assert target_ids(None, None, 5, 5) == (None, [])
    ids, notes = target_ids(np.zeros(3, np.int32), None, 3, 5)
    assert ids.tolist() == [0, 1, 2]
    assert "ever chosen" in notes[0]
    ids, _ = target_ids(np.array([1, -1, 0]), None, 3, 3)  # a permutation of the full vocabulary stays a map
    assert ids.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("d2t", "t2d", "found"),
    [
        ([0, 0, -1], None, "draft ids 1 and 2 to the same target id 1"),
        ([4, 0, -2], [1, 1, 0, 1, 1], "1 target ids: 3 is one that t2d marks but d2t does not name"),
        ([4, 0, -2], [1, 0, 0, 0, 1], "1 target ids: 1 is one that d2t names but t2d does not mark"),
        ([2**63 - 1] * 3, None, "outside the vocabulary"),
    ],
)
def test_maps_that_cannot_be(d2t, t2d, found):
    with pytest.raises(UserError, match=found):
        target_ids(np.array(d2t), None if t2d is None else np.array(t2d), 3, 5)


def test_a_mask_without_a_map_must_be_full():
    with pytest.raises(UserError, match="contradict each other over 1 target ids"):
        target_ids(None, np.array([1, 1, 0]), 3, 3)
