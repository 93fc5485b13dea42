"""A new head's taps and layout are settled before anything is computed for it."""

import pytest
from support.new_heads import DECODER, head

from ms_eagle.errors import UserError
from ms_eagle.training.shape import chosen_taps, new_head


def test_taps():
    assert chosen_taps(None, 30) == (2, 15, 27)
    assert chosen_taps([0, 7], 30) == (0, 7)
    for asked, layers, message in (
        (None, 4, "head.taps is null, but a teacher of 4 blocks has no default"),
        ([3, 1], 9, r"head.taps is \[3, 1\]; expected different blocks in ascending order"),
        ([1, 1], 9, r"head.taps is \[1, 1\]; expected different blocks"),
        ([1, 9], 9, r"head.taps: .*the teacher has blocks 0 to 8"),
    ):
        with pytest.raises(UserError, match=message):
            chosen_taps(asked, layers)


def test_the_first_layout_that_can_say_the_head():
    assert head().format == "SpecForge"
    assert (
        head(taps=(0, 4, 6)).format == "speculators"
    )  # SGLang counts outputs of blocks: it has no name for 0
    options = {"draft_vocab_size": 6, "layers": 1, "taps": (2, 4, 6), "norm_output": False}
    assert new_head(DECODER, **options, fc_norm=False, layout="safeailab")[1] == "safeailab"
    with pytest.raises(UserError, match=r"layout safeailab .*\(fc_norm\).*expected sglang or speculators"):
        new_head(DECODER, **options, fc_norm=True, layout="safeailab")
