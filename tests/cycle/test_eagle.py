"""Speculative decoding against teacher-only decoding: the same tokens, whatever the head proposes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from support import tiny, tiny_engine

from ms_eagle.backends.stock import StockBackend
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.models.commit import FastReorder, FullReorder
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

SHAPE = TreeShape(6, 3, 3)


def greedy(count=24, **settings):
    return GenerationOptions(count, SamplingParams(), ignore_eos=True, **settings)


def sampled(seed, temperature=1.0, count=14, **settings):
    return GenerationOptions(
        count, SamplingParams(temperature=temperature, seed=seed, **settings), ignore_eos=True
    )


def tokens(completions):
    return [c.token_ids for c in completions]


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama", seed=3)


@pytest.fixture(scope="module")
def plain(model):
    return tiny_engine.plain(model)


@pytest.fixture(scope="module")
def speculative(model):
    """Half of its proposals are right: cycles of every length occur."""
    return tiny_engine.eagle(model, SHAPE, acceptance=0.6)


def test_budget_beyond_the_pool_is_refused():
    with pytest.raises(UserError, match=r"tree.budget is 40.*only 39 candidates"):
        TreeShape(40, 5, 3)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_fifty_seeds(plain, speculative, temperature):
    prompts = tiny_engine.prompts(9, seed=2) * 50
    options = [sampled(seed, temperature) for seed in range(50)]
    got = tokens(speculative.generate(prompts, options))
    assert got == tokens(plain.generate(prompts, options))
    if temperature >= 1:
        assert len(set(got)) > 25  # seeds differ


@pytest.mark.parametrize(
    "settings", [dict(top_k=4), dict(top_p=0.7), dict(min_p=0.2), dict(repetition_penalty=1.6)]
)
def test_every_sampling_option(plain, speculative, settings):
    prompts = tiny_engine.prompts(11, 4, seed=3)
    cold = GenerationOptions(20, SamplingParams(**settings), ignore_eos=True)
    for options in (sampled(1, 1.4, **settings), cold):
        assert tokens(speculative.generate(prompts, options)) == tokens(plain.generate(prompts, options))


@pytest.mark.parametrize("reorder", [FastReorder, FullReorder])
def test_a_batch_of_three_unequal_prompts(model, plain, reorder):
    engine = tiny_engine.eagle(model, SHAPE, batch=3, acceptance=0.7, reorder=reorder)
    prompts = tiny_engine.prompts(1, 25, 8, 50, 3, seed=4)
    for options in (greedy(), sampled(5, 1.1)):
        got = engine.generate(prompts, options)
        assert tokens(got) == tokens(plain.generate(prompts, options))
        assert len({c.cycles for c in got}) > 1  # each sequence goes its own way


def test_stops_inside_an_accepted_run(model, plain):
    engine = tiny_engine.eagle(model, SHAPE, acceptance=1.0)
    (prompt,) = tiny_engine.prompts(10, seed=6)
    (whole,) = plain.generate([prompt], greedy(30))
    text = plain.tokenizer.decode(whole.token_ids)
    own = plain.tokenizer.eos_ids
    for count in (0, 1, 2, 3, 29):
        assert tokens(engine.generate([prompt], greedy(count))) == [whole.token_ids[:count]]
    for stop in (text[3:5], text[6:7], text[8:11]):
        got, want = (e.generate([prompt], greedy(30, stop=(stop,)))[0] for e in (engine, plain))
        assert (got.text, got.token_ids, got.finish_reason) == (want.text, want.token_ids, "stop")
    for place in (4, 5, 6, 7):
        ids = (whole.token_ids[place],)
        for e in (engine, plain):
            e.tokenizer.eos_ids = ids
        try:
            got, want = (e.generate([prompt], GenerationOptions(30))[0] for e in (engine, plain))
        finally:
            for e in (engine, plain):
                e.tokenizer.eos_ids = own
        assert (got.token_ids, got.finish_reason) == (want.token_ids, "stop")


def test_up_to_the_last_slot(model, plain, speculative):
    for length in (58, 60, 61, 62, 63):
        prompt = tiny_engine.prompts(length, seed=length)
        got, want = (e.generate(prompt, greedy(30))[0] for e in (speculative, plain))
        assert got.token_ids == want.token_ids
        assert (got.new_tokens, got.finish_reason) == (64 - length, "length")


def test_requests_leave_nothing_behind(speculative):
    a, b = tiny_engine.prompts(12, 30, seed=7)
    first, _, third = tokens(speculative.generate([a, b, a], greedy()))
    assert first == third


@pytest.mark.parametrize("options", [greedy(10), sampled(2, 1.2, count=10)], ids=["greedy", "sampled"])
def test_two_turns_equal_the_teachers_own(model, plain, options):
    (prompt,), (question,) = tiny_engine.prompts(18, seed=8), tiny_engine.prompts(6, seed=9)
    head = tiny_engine.random_head(model, draft_vocabulary=tiny_engine.VOCABULARY)
    answers = []
    for engine in (plain, tiny_engine.eagle(model, SHAPE, head=head)):
        (first,) = engine.generate([prompt], options)
        turn = [*prompt, *first.token_ids, *question]
        (second,) = engine.generate([turn], options, reuse_prefix=True)
        assert second.reused_tokens > len(prompt)
        answers.append((first.token_ids, second.token_ids))
    assert answers[0] == answers[1]


def test_a_second_turn_reuses_both_caches(model):
    head = tiny_engine.random_head(model, draft_vocabulary=96, scale=0.1)
    engine = tiny_engine.eagle(model, SHAPE, head=head)
    (prompt,) = tiny_engine.prompts(18, seed=8)
    (first,) = engine.generate([prompt], greedy(10))
    second = [*prompt, *first.token_ids, *tiny_engine.prompts(6, seed=9)[0]]
    (again,) = engine.generate([second], greedy(20), reuse_prefix=True)
    (fresh,) = tiny_engine.eagle(model, SHAPE, head=head).generate([second], greedy(20))
    assert again.token_ids == fresh.token_ids
    assert again.accept_L == fresh.accept_L  # the drafter's cache is as good as a fresh one
    assert again.reused_tokens > len(prompt)


def test_compilations_stay_constant_over_two_hundred_cycles(model):
    engine = tiny_engine.eagle(model, SHAPE)
    engine.generate(tiny_engine.prompts(5), greedy(2))
    before = engine.compilations
    completions = engine.generate(tiny_engine.prompts(*range(1, 13), seed=10), greedy(30))
    assert sum(c.cycles for c in completions) >= 200
    assert engine.compilations == before


def test_first_two_tokens_have_the_teachers_distribution(model):
    """Chi-squared over 20,000 runs, cells with an expected count of at least five."""
    runs, batch = 20_000, 250
    (prompt,) = tiny_engine.prompts(7, seed=11)
    head = tiny_engine.random_head(model, draft_vocabulary=tiny_engine.VOCABULARY)
    engine = tiny_engine.eagle(model, TreeShape(3, 2, 2), batch=batch, head=head)
    options = [sampled(seed, 1.0, count=2) for seed in range(runs)]
    pairs = np.array(tokens(engine.generate([prompt] * runs, options)))
    first, second = _exact(model, prompt)
    joint = (first[:, None] * second).ravel()
    counts = np.bincount(pairs[:, 0] * joint.size // len(first) + pairs[:, 1], minlength=joint.size)
    expected = joint * runs
    big = expected >= 5
    seen = np.append(counts[big], counts[~big].sum())
    want = np.append(expected[big], expected[~big].sum())
    statistic = ((seen - want) ** 2 / want).sum()
    freedom = len(want) - 1
    # The statistic's mean is `freedom`, its variance twice that: five deviations are one run in 10^6.
    assert freedom > 50
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def _exact(model, prompt):
    """Distribution of the first token ``[V]`` and of the second given the first ``[V, V]``."""
    import torch

    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0, -1].double().softmax(0)
        extended = torch.tensor([[*prompt, t] for t in range(tiny_engine.VOCABULARY)])
        second = model(extended).logits[:, -1].double().softmax(1)
    return first.numpy(), second.numpy()


def _buffers(cache):
    return [b.asnumpy().reshape(cache.shape).copy() for b in (*cache.keys, *cache.values)]


def test_both_caches_after_every_commit_equal_a_fresh_run(model):
    """And slots past the trees, the guard rows, never change."""
    head = tiny_engine.random_head(model, draft_vocabulary=96)
    batch, lengths = 2, (5, 11)
    engine = tiny_engine.eagle(model, SHAPE, batch=batch, head=head)
    fresh = tiny_engine.eagle(model, SHAPE, batch=batch, head=head)
    graphs, prompts = engine.graphs, tiny_engine.prompts(*lengths, seed=12)
    caches = {
        name: (
            {"teacher": graphs.teacher, "drafter": graphs.drafter.head}[name].cache,
            {"teacher": fresh.graphs.teacher, "drafter": fresh.graphs.drafter.head}[name].cache,
        )
        for name in ("teacher", "drafter")
    }
    guard = 7.5
    for cache, _ in caches.values():
        for buffer in (*cache.keys, *cache.values):
            buffer.set_data(Tensor(np.full(buffer.shape, guard, np.float32)))
    sequences = [list(p) for p in prompts]
    make, checked = graphs.cycle, []

    def cycle(tier, sampled):
        cell = make(tier, sampled)

        def run(root, n, active, *rest):
            report, state = cell(root, n, active, *rest)
            read = report.asnumpy()
            for row in range(batch):
                if active.asnumpy()[row]:
                    sequences[row] += read[row, 2 : 2 + read[row, 0]].tolist()
            _compare(n.asnumpy() + read[:, 0])
            return report, state

        return run

    def _compare(lengths_now):
        fresh.forget()
        # Reading a prompt of n + 1 tokens commits n of them.
        fresh.generate([s[: n + 1] for s, n in zip(sequences, lengths_now, strict=True)], greedy(1))
        for name, (cache, clean) in caches.items():
            for got, want in zip(_buffers(cache), _buffers(clean), strict=True):
                for row, n in enumerate(lengths_now):
                    np.testing.assert_allclose(
                        got[row, :, :n], want[row, :, :n], atol=2e-5, err_msg=f"{name} row {row} n {n}"
                    )
                    touched = n + max(SHAPE.rows, (SHAPE.depth - 1) * SHAPE.branch)
                    assert (got[row, :, touched : cache.trash] == guard).all()
        checked.append(lengths_now)

    fresh.warm_up(greedy())
    engine.warm_up(greedy())
    graphs.cycle = cycle
    engine.generate(prompts, greedy(16))
    assert len(checked) > 5


def test_drafter_logits_that_are_not_finite_end_the_run(model):
    head = tiny_engine.random_head(model)
    head.tensors["norm.weight"][3] = np.nan
    engine = tiny_engine.eagle(model, SHAPE, head=head)
    with pytest.raises(UserError, match=r"drafter's logits are not finite.*after 7 tokens"):
        engine.generate(tiny_engine.prompts(7), greedy(5))


def test_a_drafter_without_preference_or_without_doubt(model, plain):
    """All scores equal; and a child of probability exactly 1, which ties with its parent."""
    prompts = tiny_engine.prompts(3, 14, seed=13)
    want = tokens(plain.generate(prompts, greedy()))
    flat = tiny_engine.random_head(model)
    flat.tensors["lm_head.weight"][:] = 0
    certain = tiny_engine.random_head(model)
    certain.tensors["lm_head.weight"][:] *= 1e4
    for head in (flat, certain):
        assert tokens(tiny_engine.eagle(model, SHAPE, head=head).generate(prompts, greedy())) == want


def test_confidence_turns_doubtful_nodes_into_padding(model, plain):
    prompts = tiny_engine.prompts(3, 14, seed=14)
    want = tokens(plain.generate(prompts, greedy()))
    sure = tiny_engine.eagle(model, SHAPE, acceptance=0.9, confidence=1.0)
    got = sure.generate(prompts, greedy())
    assert tokens(got) == want
    assert {a for c in got for a in c.accept_L} == {0}  # nothing is certain: no draft token is checked


def test_float16_speculation_equals_float16_alone(model):
    """On an NPU both run in 16 bits; here only ties could separate them, and these prompts have none."""
    options = greedy(12)
    prompts = tiny_engine.prompts(6, 15, seed=15)
    engine = tiny_engine.eagle(model, SHAPE, acceptance=0.8, backend=StockBackend("eager", ms.float16))
    got = engine.generate(prompts, options)
    assert tokens(got) == tokens(engine.alone().generate(prompts, options))
    assert max(max(c.accept_L) for c in got) > 0
