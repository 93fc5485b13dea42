"""Answers that go round in circles, and those that only seem to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_engine import CharacterTokenizer

from ms_eagle.engine.answer import Answer
from ms_eagle.engine.loops import Loops
from ms_eagle.engine.requests import GenerationOptions


def ends_in_a_loop(tokens):
    """The definition, written out."""
    for p in range(1, 65):
        phrase, length = tokens[-p:], max(8 * p, 128)
        if len(tokens) >= length and all(tokens[-1 - i] == phrase[-1 - i % p] for i in range(length)):
            return True
    return False


def first_end(tokens):
    loops = Loops()
    return next((n for n, token in enumerate(tokens, 1) if loops.push(token)), None)


@pytest.mark.parametrize(("p", "length"), [(1, 128), (8, 128), (16, 128), (20, 160), (64, 512), (65, None)])
def test_how_long_a_loop_goes_on(p, length):
    phrase = list(range(100, 100 + p))
    assert first_end(phrase * 130) == length
    assert first_end([1, 2, 3, *phrase * 130]) == (None if length is None else length + 3)


def test_what_is_no_loop():
    counting = [token for number in range(300) for token in (7, number + 100, 8)]
    assert first_end(counting) is None
    assert first_end(([5] * 127 + [6]) * 7) is None
    rng = np.random.default_rng(0)
    assert first_end(rng.integers(0, 3, 4000).tolist()) is None


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=70))
@settings(max_examples=30, deadline=None)
def test_the_first_token_at_which_the_definition_holds(prefix, phrase):
    tokens = prefix + phrase * 12
    expected = next((n for n in range(1, len(tokens) + 1) if ends_in_a_loop(tokens[:n])), None)
    assert first_end(tokens) == expected


def test_an_answer_ends_only_where_asked_and_is_the_same_until_then():
    tokens = [50, 51, 52] * 100
    whole = Answer(CharacterTokenizer(), GenerationOptions(max_new_tokens=300), 300)
    whole.take(tokens)
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 300)
    cut = Answer(CharacterTokenizer(), GenerationOptions(max_new_tokens=300, stop_loops=True), 300)
    for first in range(0, 300, 7):
        cut.take(tokens[first : first + 7])
    assert (cut.finish_reason, cut.token_ids) == ("loop", tokens[:128])
    assert whole.text.startswith(cut.text)
