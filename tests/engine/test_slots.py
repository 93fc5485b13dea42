"""Requests that share the slots of one engine: each gets the tokens it would get alone."""

from collections import deque
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny, tiny_engine
from support.tiny_engine import CAPACITY, prompts

from ms_eagle.engine.feed import answers
from ms_eagle.engine.requests import GenerationOptions, Request
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

LENGTHS = (3, 1, 9, 2, 30, 17, 5, 40, 8, 1, 12)
SHAPE, SMALL = TreeShape(6, 3, 3), TreeShape(2, 1, 2)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(1.0, top_p=0.9, seed=4),
    SamplingParams(0.7, repetition_penalty=1.8, seed=5),
    SamplingParams(repetition_penalty=1.3),
)


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama")


@pytest.fixture(scope="module")
def plain(model):
    return tiny_engine.plain(model, batch=3)


@pytest.fixture(scope="module")
def tiers(model):
    """Two tree sizes and plain decoding over one set of caches, another at every cycle."""
    turns = cycle((SHAPE, None, SMALL))
    head = tiny_engine.random_head(model, draft_vocabulary=tiny_engine.VOCABULARY)
    options = {"batch": 3, "head": head, "choose_tier": lambda: next(turns)}
    return tiny_engine.eagle(model, SHAPE, SMALL, None, **options)


@pytest.fixture(params=["plain", "tiers"])
def engine(request):
    return request.getfixturevalue(request.param)


def mixed(count, seed=0):
    """Requests of all lengths, options and limits."""
    asked = prompts(*(LENGTHS[i % len(LENGTHS)] for i in range(count)), seed=seed)
    return [
        Request(prompt, GenerationOptions(4 + 3 * (i % 5), SAMPLINGS[i % 4]))
        for i, prompt in enumerate(asked)
    ]


@pytest.fixture(scope="module")
def alone(model):
    """What each of ``mixed(11)`` gets with nothing beside it: one sequence, plain decoding."""
    single = tiny_engine.plain(model)
    return [single.run([request])[0] for request in mixed(11)]


def test_every_request_gets_its_own_tokens_in_any_company(engine, alone):
    for _ in range(2):  # again, with caches that hold the prefixes of others
        completions = engine.run(mixed(11))
        assert [c.token_ids for c in completions] == [c.token_ids for c in alone]
        assert [c.text for c in completions] == [c.text for c in alone]
        assert [c.finish_reason for c in completions] == [c.finish_reason for c in alone]


def test_a_slot_takes_the_next_request_while_the_others_are_mid_answer(engine):
    requests = mixed(3) + mixed(3, seed=1)
    begun = [engine.submit(request) for request in requests[:3]]
    late, streams, ended = deque(requests[3:]), {}, {}
    while engine.busy:
        for news in engine.step():
            tokens, text = streams.get(news.number, ((), ""))
            streams[news.number] = (*tokens, *news.tokens), text + news.text
            if news.completion is not None:
                ended[news.number] = news.completion
                if late:
                    assert engine.busy  # others are on their way
                    begun.append(engine.submit(late.popleft()))
    assert sorted(ended) == sorted(begun)
    for number, request in zip(begun, requests, strict=True):
        assert streams[number] == (ended[number].token_ids, ended[number].text)
        assert engine.run([request])[0].token_ids == ended[number].token_ids


def test_compilations_stay_constant_over_tiers_options_and_admissions(tiers):
    tiers.run(mixed(11))
    before = tiers.compilations
    tiers.run(mixed(22, seed=3))
    assert tiers.compilations == before == 1 + 3 * 2  # a prefill; three tiers, greedy and sampled


def test_switching_tiers_accepts_and_keeps_the_drafter_in_step(model, tiers):
    """What the scripted drafter would say is accepted at every tier, so its state survives each switch."""
    turns = cycle((SHAPE, None, SMALL, None, None, SHAPE))
    scripted = tiny_engine.eagle(model, SHAPE, SMALL, None, acceptance=1.0, choose_tier=lambda: next(turns))
    (prompt,) = prompts(9)
    (completion,) = scripted.generate([prompt], GenerationOptions(30, ignore_eos=True))
    *accepted, _ = completion.accept_L
    assert accepted[:6] == [3, 0, 1, 0, 0, 3]


def test_an_answer_can_lead_to_the_next_request(plain):
    first, options = prompts(10)[0], GenerationOptions(5, ignore_eos=True)
    waiting, sequence = deque([(0, Request(first, options, reuse_prefix=True))]), list(first)
    reused = []
    for number, completion in answers(plain, lambda: waiting.popleft() if waiting else None):
        sequence += completion.token_ids
        reused.append(completion.reused_tokens)
        if number < 3:
            sequence += [7, 8]
            waiting.append((number + 1, Request(list(sequence), options, reuse_prefix=True)))
    assert len(sequence) == 10 + 4 * 5 + 3 * 2
    assert all(count > 10 for count in reused[1:])
    (alone,) = plain.generate([sequence[:-5]], options)
    assert alone.token_ids == tuple(sequence[-5:])


def test_a_prompt_goes_to_the_slot_that_holds_its_beginning(plain):
    asked = prompts(20, 25, 30)
    options = GenerationOptions(2, ignore_eos=True)
    plain.generate(asked, options)
    longer = [*asked[1], 5, 6, 7]
    (completion,) = plain.run([Request(longer, options, reuse_prefix=True)])
    assert completion.reused_tokens == 24


def test_an_answer_ends_where_the_capacity_does(engine):
    (completion,) = engine.run([Request(prompts(CAPACITY - 4)[0], GenerationOptions(9, ignore_eos=True))])
    assert (completion.new_tokens, completion.finish_reason) == (4, "length")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, CAPACITY - 1), st.integers(0, 12)), min_size=1, max_size=7))
def test_sequences_that_end_at_capacity_disturb_no_other(tiers, single, sizes):
    """A finished sequence takes no part: whatever its last cycle accepted, no index leaves its range."""
    asked = prompts(*(length for length, _ in sizes), seed=len(sizes))
    requests = [
        Request(prompt, GenerationOptions(count or CAPACITY, ignore_eos=True))
        for prompt, (_, count) in zip(asked, sizes, strict=True)
    ]
    completions = tiers.run(requests)
    for request, completion in zip(requests, completions, strict=True):
        room = CAPACITY - len(request.prompt)
        assert completion.new_tokens == min(request.options.max_new_tokens, room)
        assert completion.token_ids == single.run([request])[0].token_ids


@pytest.fixture(scope="module")
def single(model):
    return tiny_engine.plain(model)


def test_after_a_fault_the_engine_is_whole_again(model, alone):
    engine = tiny_engine.eagle(model, SHAPE, batch=3)
    engine.run(mixed(3))
    sound = engine.graphs.cycle

    def broken(tier, sampled):
        raise RuntimeError("a fault inside a step")

    engine.graphs.cycle = broken
    with pytest.raises(RuntimeError, match="a fault inside a step"):
        engine.run(mixed(3))
    engine.graphs.cycle = sound
    assert not engine.busy
    assert [c.token_ids for c in engine.run(mixed(11))] == [c.token_ids for c in alone]


def test_what_cannot_be_answered_and_nothing(plain):
    for prompt in ([], prompts(CAPACITY)[0]):
        with pytest.raises(UserError):
            plain.submit(Request(prompt, GenerationOptions(9)))
    assert not plain.busy
    assert plain.run([]) == []
    assert list(answers(plain, lambda: None)) == []
    number = plain.submit(mixed(1)[0])
    with pytest.raises(RuntimeError, match="in flight"):
        plain.run(mixed(1))
    assert plain.cancel([number]) == []  # it was not begun
    assert not plain.busy


def test_a_cancelled_request_leaves_the_others_alone(engine, alone):
    requests = mixed(11)
    numbers = [engine.submit(request) for request in requests]
    engine.step()
    engine.step()
    (news,) = engine.cancel(numbers[:1])
    assert news.completion.finish_reason == "interrupted"
    assert engine.cancel(numbers[:1]) == []
    completions = {}
    while engine.busy:
        completions |= {n.number: n.completion.token_ids for n in engine.step() if n.completion}
    assert completions == {number: c.token_ids for number, c in zip(numbers[1:], alone[1:], strict=True)}
