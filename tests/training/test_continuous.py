"""Continuous batching gives the tokens that the engine gives, whatever shares the batch."""

from collections import deque

import pytest
from support import tiny, tiny_engine
from support.tiny_engine import CAPACITY, prompts

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.training.continuous import ContinuousBatch, Request
from ms_eagle.tree.shape import TreeShape

LENGTHS = (3, 1, 9, 2, 30, 17, 5, 40, 8, 1, 12)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine.plain(tiny.make("llama"), batch=3)


def run(batch, requests, greedy):
    waiting = deque(requests)
    return list(batch.run(lambda: waiting.popleft() if waiting else None, greedy=greedy))


@pytest.mark.parametrize("greedy", [True, False])
def test_tokens_are_those_of_the_engine(engine, greedy):
    asked = prompts(*LENGTHS)
    samplings = [SamplingParams() if greedy else SamplingParams(1.0, top_p=0.9, seed=n) for n in range(11)]
    options = [GenerationOptions(4 + 3 * (n % 5), sampling) for n, sampling in enumerate(samplings)]
    wanted = engine.generate(asked, options)
    batch = ContinuousBatch(engine)
    requests = [Request(str(n), *pair) for n, pair in enumerate(zip(asked, options, strict=True))]
    for _ in range(2):  # again, with caches that hold the prefixes of others
        replies = {reply.key: reply for reply in run(batch, requests, greedy)}
        assert [replies[str(n)].token_ids for n in range(len(asked))] == [w.token_ids for w in wanted]
        assert [replies[str(n)].finish_reason for n in range(len(asked))] == [w.finish_reason for w in wanted]
        requests.reverse()


def test_an_answer_can_lead_to_the_next_request(engine):
    first, options = prompts(10)[0], GenerationOptions(5, ignore_eos=True)
    waiting, sequence = deque([Request("0", first, options)]), list(first)
    batch = ContinuousBatch(engine)
    for reply in batch.run(lambda: waiting.popleft() if waiting else None, greedy=True):
        sequence += reply.token_ids
        if int(reply.key) < 3:
            sequence += [7, 8]
            waiting.append(Request(str(int(reply.key) + 1), list(sequence), options))
    assert len(sequence) == 10 + 4 * 5 + 3 * 2
    alone = engine.generate([sequence[: len(sequence) - 5]], options)[0]
    assert alone.token_ids == tuple(sequence[len(sequence) - 5 :])


def test_an_answer_ends_where_the_capacity_does(engine):
    asked = prompts(CAPACITY - 4)[0]
    (reply,) = run(
        ContinuousBatch(engine), [Request("a", asked, GenerationOptions(9, ignore_eos=True))], True
    )
    assert (len(reply.token_ids), reply.finish_reason) == (4, "length")


def test_what_cannot_be_answered(engine):
    for prompt in ([], prompts(CAPACITY)[0]):
        with pytest.raises(ValueError, match="leave no room for an answer"):
            run(ContinuousBatch(engine), [Request("a", prompt, GenerationOptions(9))], True)
    speculating = tiny_engine.eagle(tiny.make("llama"), TreeShape(2, 1, 2))
    with pytest.raises(ValueError, match="without a drafter, found eagle3"):
        ContinuousBatch(speculating)
    assert run(ContinuousBatch(engine), [], True) == []
