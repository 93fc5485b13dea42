"""Verdicts over written-out agreements."""

from dataclasses import replace

import pytest

from ms_eagle.diagnosis.agreement import Agreement
from ms_eagle.diagnosis.verdict import Suspect, figure, judge, looks_low

GOOD = Agreement(
    positions=(300, 290, 280),
    top1=(0.72, 0.66, 0.6),
    topk=(0.93, 0.9, 0.88),
    accept_chain=1.6,
    accept_branch=2.6,
    coverage=0.99,
    relabelled=0.3,
    finite=True,
)
BAD = replace(GOOD, top1=(0.03, 0.02, 0.02), topk=(0.1, 0.1, 0.1), accept_chain=0.03, relabelled=0.05)


def test_a_good_head():
    assert not looks_low(GOOD)
    verdict = judge(GOOD, [], "float32")
    assert (verdict.code, verdict.text) == ("good", "the head fits its teacher.")


def test_few_positions_and_a_small_vocabulary_are_told():
    text = judge(replace(GOOD, positions=(20, 19, 18), coverage=0.8), [], "float32").text
    assert "20 % of the teacher's choices are outside the draft vocabulary" in text
    assert "Only 20 positions were measured." in text


@pytest.mark.parametrize(
    ("changes", "low"),
    [
        ({"top1": (0.49, 0.48, 0.47)}, True),
        ({"top1": (0.51, 0.5, 0.5)}, False),
        ({"top1": (0.8, 0.47, 0.4)}, True),
        ({"top1": (0.8, 0.49, 0.1)}, False),
        ({"top1": (0.8, None, None)}, False),
        ({"top1": (None,), "positions": (0,)}, True),
        ({"top1": (0.1, 0.1, 0.1), "finite": False}, False),
    ],
)
def test_when_suspects_are_tried(changes, low):
    assert looks_low(replace(GOOD, **changes)) is low


def test_the_best_suspect_is_named():
    tried = [
        Suspect(
            "taps 1, 4, 6",
            "set drafter.taps=[1, 4, 6]",
            replace(GOOD, top1=(0.4, 0.3, 0.2), accept_chain=0.5),
        ),
        Suspect("taps 3, 6, 8", "set drafter.taps=[3, 6, 8]", GOOD),
        Suspect("norm_output true", "set it", BAD),
    ]
    verdict = judge(BAD, tried, "float32")
    assert verdict.code == "suspect"
    assert verdict.text == (
        "with taps 3, 6, 8 top-1 would be 0.72 instead of 0.03 and a chain's accept_L 1.60 instead of 0.03: "
        "set drafter.taps=[3, 6, 8]."
    )


def test_a_suspect_may_help_past_the_first_depth_only():
    falls = replace(GOOD, top1=(0.72, 0.2, 0.1), accept_chain=0.9)
    verdict = judge(falls, [Suspect("norm_output true", "set norm_output=true", GOOD)], "float32")
    assert verdict.code == "suspect"
    assert "with norm_output true" in verdict.text
    verdict = judge(falls, [], "float32")
    assert verdict.code == "low"
    assert "falls from 0.72 to 0.20 at depth 2" in verdict.text


def test_noise_is_no_suspect():
    """A little better is not better; nor is a reading whose logits are not finite."""
    noise = Suspect("taps 1, 4, 6", "", replace(BAD, top1=(0.06, 0.02, 0.02)))
    broken = Suspect("rope_theta 1", "", replace(GOOD, finite=False))
    verdict = judge(BAD, [noise, broken], "float32")
    assert verdict.code == "low"
    assert "no usual suspect explains it" in verdict.text


def test_a_consistent_head_under_wrong_names():
    verdict = judge(replace(BAD, relabelled=0.35), [], "float32")
    assert verdict.code == "suspect"
    assert "d2t" in verdict.text
    assert judge(replace(BAD, relabelled=0.35, positions=(40, 30, 20)), [], "float32").code == "low"


def test_not_finite():
    verdict = judge(replace(BAD, finite=False), [], "float16")
    assert verdict.code == "not finite"
    assert "model.dtype=float16" in verdict.text


def test_figures():
    assert (figure(None), figure(0.666)) == ("-", "0.67")
