"""The n-gram drafter: its index against a search through the whole text, and the teacher's own tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_eagle

from ms_eagle.drafters.ngram.drafter import by_depth
from ms_eagle.drafters.ngram.index import SuffixIndex
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.loading import load_engine
from ms_eagle.sampling.options import SamplingParams

texts = st.lists(st.integers(0, 3), max_size=40)


def continuations(text, shortest, longest, depth):
    """What followed each earlier place of any of the text's last runs."""
    found = set()
    for length in range(shortest, longest + 1):
        for end in range(length, len(text)):
            if text[end - length : end] == text[len(text) - length :]:
                found.add(tuple(text[end : end + depth]))
    return found


@settings(max_examples=200, deadline=None)
@given(texts, st.integers(1, 3), st.integers(0, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_candidates_are_what_followed_before(text, shortest, more, count, depth, branch):
    index = SuffixIndex(shortest, shortest + more)
    index.follow(text)
    found = index.candidates(count, depth, branch)
    known = continuations(text, shortest, shortest + more, depth)
    assert bool(found) == bool(known)
    assert len(found) <= count
    paths, children = {0: ()}, {}
    for number, (token, parent, level, score) in enumerate(found, 1):
        paths[number] = (*paths[parent], token)  # parents come first
        assert level == len(paths[number]) <= depth
        assert score < (found[parent - 1].score if parent else 0)
        assert any(path[:level] == paths[number] for path in known)
        children.setdefault(parent, []).append(token)
    assert all(len(set(tokens)) == len(tokens) <= branch for tokens in children.values())
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    laid = by_depth(found)
    assert [each.depth for each in laid] == sorted(each.depth for each in found)
    again = {0: ()}
    for number, each in enumerate(laid, 1):
        again[number] = (*again[each.parent], each.token)
    assert sorted(again.values()) == sorted(paths.values())


@given(texts, texts, st.integers(0, 40))
def test_an_index_follows_a_text_wherever_it_goes(first, second, kept):
    """Growing, cut back and changed texts give what a new index of the last one gives."""
    index, fresh = SuffixIndex(1, 3), SuffixIndex(1, 3)
    last = [*first[:kept], *second]
    for text in (first, last[: len(last) // 2], last):
        index.follow(text)
    fresh.follow(last)
    assert index.candidates(9, 4, 3) == fresh.candidates(9, 4, 3)


def test_the_longest_run_decides_and_counts_vote():
    #        1 2 3 -> 4 twice, -> 5 once; a 3 alone was followed by 9 last
    text = [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 3, 9, 1, 2, 3]
    index = SuffixIndex(1, 3)
    index.follow(text)
    tokens = [(each.token, each.parent, each.depth) for each in index.candidates(4, 2, 3)]
    assert tokens == [(4, 0, 1), (0, 1, 2), (5, 0, 1), (3, 3, 2)]


def test_nothing_is_proposed_where_nothing_stood_before():
    index = SuffixIndex(2, 4)
    for text in ([], [7], [7, 8, 9, 8]):
        index.follow(text)
        assert index.candidates(8, 3, 3) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_eagle.model_dir("llama", tmp_path_factory.mktemp("ngram"), tie_word_embeddings=True)


OPTIONS = [
    GenerationOptions(40, SamplingParams(), ignore_eos=True),
    GenerationOptions(25, SamplingParams(temperature=0.9, seed=2, repetition_penalty=1.1), ignore_eos=True),
]
PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9], list(range(20, 40)) * 2, [11, 12, 11, 12, 11]]


def engine(model, *overrides):
    return load_engine(tiny_eagle.config(model, None, [*overrides]))


@pytest.fixture(scope="module")
def plain(model):
    return engine(model)


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [(["execution.batch_size=3"], OPTIONS), (["execution.mode=reference"], OPTIONS[:1])],
)
def test_the_text_is_the_teachers_own(model, plain, overrides, asked):
    drafting = engine(model, "drafter.kind=ngram", "drafter.shortest=1", *overrides)
    cycles = 0
    for options in asked:
        got, want = (each.generate(PROMPTS, options) for each in (drafting, plain))
        assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
        cycles += sum(answer.cycles for answer in got)
        longer = [[*prompt, *answer.token_ids, 5, 6] for prompt, answer in zip(PROMPTS, want, strict=True)]
        again = drafting.generate(longer[:1], options, reuse_prefix=True)
        assert again[0].token_ids == plain.generate(longer[:1], options)[0].token_ids
    assert cycles < 4 * sum(options.max_new_tokens for options in asked)  # something was accepted


def test_shapes_that_never_match_cost_plain_steps_only(model, plain):
    drafting = engine(model, "drafter.kind=ngram", "drafter.shortest=30", "drafter.longest=32")
    drafting.warm_up(OPTIONS[0])
    compiled = drafting.compilations
    got = drafting.generate([[9, 8, 7]], OPTIONS[0])
    assert got[0].token_ids == plain.generate([[9, 8, 7]], OPTIONS[0])[0].token_ids
    assert got[0].accept_L == (0,) * 40
    assert drafting.compilations == compiled


def test_lengths_that_contradict_each_other_are_refused(model):
    with pytest.raises(UserError, match=r"drafter\.shortest is 9, drafter\.longest is 8"):
        engine(model, "drafter.kind=ngram", "drafter.shortest=9")


def test_an_index_of_a_long_text_has_every_place():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 50, 3000).tolist()
    index = SuffixIndex(2, 8)
    for end in range(0, 3001, 7):
        index.follow(text[:end])
    index.follow([*text, *text[100:120]])
    assert [each.token for each in index.candidates(5, 5, 1)] == text[120:125]
