"""A head that drafts fewer tokens: which rows are kept, and what they stand for."""

from dataclasses import replace

import numpy as np
import pytest
from support.heads import PLAIN, random_head

from ms_eagle.drafters.eagle3.vocabulary import narrowed
from ms_eagle.errors import UserError


@pytest.mark.parametrize("ids", [None, [30, 2, 7, 9, 1, 25]])
def test_the_lowest_target_ids_are_kept_with_their_rows(ids):
    head = random_head(PLAIN)
    rows = head.tensors["lm_head.weight"]
    if ids is not None:
        config = replace(head.config, draft_vocab_size=len(ids))
        tensors = {**head.tensors, "lm_head.weight": rows[: len(ids)]}
        head = replace(head, config=config, tensors=tensors, d2t=np.array(ids, np.int32))
    else:
        head = replace(head, d2t=None)
    cut = narrowed(head, 3)
    assert cut.d2t.tolist() == ([0, 1, 2] if ids is None else [2, 7, 1])
    assert cut.config.draft_vocab_size == 3
    assert {name: w.shape for name, w in cut.tensors.items()} == cut.config.tensor_shapes()
    kept = [0, 1, 2] if ids is None else [1, 2, 4]
    np.testing.assert_array_equal(cut.tensors["lm_head.weight"], rows[kept])


def test_what_cannot_be_narrowed_is_refused():
    head = random_head(PLAIN)
    had = head.config.draft_vocab_size
    assert narrowed(head, had).config == head.config
    with pytest.raises(UserError, match=f"drafter.vocabulary is {had + 1}, but the head drafts {had}"):
        narrowed(head, had + 1)
    with pytest.raises(UserError, match="an LM head of its own"):
        narrowed(replace(head, config=replace(head.config, shares_lm_head=True)), 1)
