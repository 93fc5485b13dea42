"""What is left out of a corpus."""

import pytest

from ms_eagle.training.corpus.filters import MAX_CHARACTERS, answer_fault, loops, normalised, turn_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("How do I boil an egg?", None),
        ("怎样煮一个鸡蛋才好吃？", None),
        ("def f(x):\n\treturn x", None),
        ("Hi!", "turn too short"),
        ("x y " * MAX_CHARACTERS, "turn too long"),
        ("Tell me<|im_start|>more", "turn with a template marker"),
        ("What is this \ufffd thing?", "turn not printable"),
        ("What is this \x07 thing?", "turn not printable"),
        ("1 + 1 = 2, 2 + 2 = 4", "turn without words"),
        ("please help me " * 9, "turn loops"),
    ],
)
def test_turns(text, fault):
    assert turn_fault(text, ("<|im_start|>",)) == fault


def test_answers():
    assert answer_fault([5, 6, 2], "hi") is None
    assert answer_fault([2], "") == "answer empty"
    assert answer_fault([9, 9, 2], " \n") == "answer empty"
    assert answer_fault([1, 2, 3] * 9, "abc") == "answer loops"


def test_loops_at_the_limit():
    # 20 runs of eight in 27 items: ten distinct ones are half of them.
    period = list(range(10))
    assert not loops((period * 3)[:27])
    assert loops((list(range(9)) * 3)[:27])
    assert not loops([1] * 8)  # a single run repeats nothing
    assert not loops([])


def test_normalised():
    assert normalised("  What's THIS?\n") == normalised("what s this") == "what s this"
    assert normalised("Straße №1") != normalised("Strasse 2")
