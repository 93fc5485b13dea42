"""The synthetic drafter: exactly as skilled as its coins, lossless, and marked wherever it shows."""

import json
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from support import tiny_eagle
from support.heads import PLAIN, drafter_cell, int32, random_head, teacher_ends

from ms_eagle.chat.report import JsonReport, TextReport, figures, record
from ms_eagle.drafters.eagle3.random_weights import random_head as synthetic_head
from ms_eagle.drafters.scripted import SyntheticProposer, toss
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.growth import TreeShape

DEPTH = 3
SAMPLED = SamplingParams(temperature=0.9, top_k=20, repetition_penalty=1.3, seed=11)
SYNTHETIC = ["drafter.kind=synthetic", "drafter.taps=[0,1]", "drafter.acceptance=0.5"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_eagle.model_dir("qwen3", tmp_path_factory.mktemp("synthetic"))


@pytest.fixture(scope="module")
def engine(model):
    engine = tiny_eagle.engine(model, None, [*SYNTHETIC, "execution.batch_size=2"])
    proposer = engine.graphs.proposer
    assert proposer.coins.asnumpy().tolist() == toss(proposer.positions, 0.5).tolist()
    return engine


@pytest.fixture(scope="module")
def teacher(model):
    return tiny_eagle.engine(model, None)


def prompts(engine):
    rng = np.random.default_rng(0)
    return [rng.integers(3, engine.graphs.vocab_size, count).tolist() for count in (1, 2, 5, 11, 20)]


def walk(coins, start, new):
    """Accepted tokens of every cycle of an answer of ``new`` tokens after ``start`` prompt tokens."""
    accepted, n = [], start - 1
    end = start + new
    while n + 1 < end:
        run = 0
        while n > 0 and run < DEPTH and n + run + 1 < end and coins[n + run + 1]:
            run += 1
        accepted.append(run)
        n += run + 1
    return accepted


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_acceptance_is_that_of_the_coins(engine, acceptance):
    proposer = engine.graphs.proposer
    coins = toss(proposer.positions, acceptance)
    proposer.coins.set_data(ms.Tensor(coins))
    options = GenerationOptions(40, SamplingParams(), ignore_eos=True)
    for prompt, completion in zip(prompts(engine), engine.generate(prompts(engine), options), strict=True):
        *cycles, last = completion.accept_L
        *wanted, _ = walk(coins, len(prompt), completion.new_tokens)
        assert cycles == wanted
        assert 0 <= last <= DEPTH  # the last cycle drafts past what the teacher has said
        if acceptance == 0:
            assert sum(cycles) == 0
        if acceptance == 1:
            assert cycles[1:] == [DEPTH] * (len(cycles) - 1)
            assert cycles[0] == (DEPTH if len(prompt) > 1 else 0)  # a lone token has nothing to draft from


def test_coins_fall_as_asked():
    for acceptance in (0.0, 0.3, 0.7, 1.0):
        coins = toss(20000, acceptance)
        assert set(coins.tolist()) <= {0, 1}
        assert abs(coins.mean() - acceptance) < 0.015
        assert coins.tolist() == toss(20000, acceptance).tolist()
    assert (toss(500, 0.3) <= toss(500, 0.7)).all()


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_tokens_are_the_teachers(engine, teacher, sampling):
    engine.graphs.proposer.coins.set_data(ms.Tensor(toss(engine.graphs.proposer.positions, 0.7)))
    options = GenerationOptions(40, sampling, ignore_eos=True)
    asked = prompts(engine)
    wanted, found = teacher.generate(asked, options), engine.generate(asked, options)
    assert [c.token_ids for c in found] == [c.token_ids for c in wanted]
    assert sum(map(sum, (c.accept_L for c in found))) > 50
    assert max(c.cycles for c in found) < min(c.cycles for c in wanted)


def test_a_stop_ends_it_as_it_ends_the_teacher(engine, teacher):
    asked = prompts(engine)
    free = teacher.generate(asked, GenerationOptions(20, ignore_eos=True))
    word = next(c.text[5:7] for c in free if len(c.text) > 8)
    options = GenerationOptions(20, stop=(word,))
    wanted, found = teacher.generate(asked, options), engine.generate(asked, options)
    assert [(c.text, c.token_ids, c.finish_reason) for c in found] == [
        (c.text, c.token_ids, c.finish_reason) for c in wanted
    ]
    assert any(c.finish_reason == "stop" for c in found)


def test_ctrl_c_in_the_rehearsal_ends_the_answer(engine):
    alone = engine._teacher.graphs
    cycle, calls = alone.cycle, []

    def interrupted(greedy):
        calls.append(greedy)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return cycle(greedy)

    alone.cycle = interrupted
    try:
        found = engine.generate(prompts(engine)[:3], GenerationOptions(9, ignore_eos=True))
    finally:
        alone.cycle = cycle
    assert [(c.finish_reason, c.token_ids, c.drafter) for c in found] == [
        ("interrupted", (), "synthetic")
    ] * 2
    after = engine.generate(prompts(engine)[:3], GenerationOptions(9, ignore_eos=True))
    assert [c.new_tokens for c in after] == [9, 9, 9]


def test_warm_up_compiles_the_rehearsal_too(engine):
    engine.warm_up(GenerationOptions(1))
    before = engine.compilations, engine._teacher.compilations
    engine.generate([[3, 4, 5, 6]], GenerationOptions(5, ignore_eos=True))
    assert (engine.compilations, engine._teacher.compilations) == before
    assert min(before) > 0


def test_every_output_is_marked(engine, capsys):
    (completion,) = engine.generate([[3, 4, 5]], GenerationOptions(6, ignore_eos=True))
    assert completion.drafter == "synthetic"
    assert record(completion)["drafter"] == "synthetic"
    assert figures(completion).startswith("[synthetic drafter | 6 tokens (length) | ")
    assert "| accept_L " in figures(completion)
    assert "synthetic" not in figures(replace(completion, drafter="eagle3"))
    for report in (TextReport(), JsonReport()):
        report.end(completion)
        out, err = capsys.readouterr()
        assert err.startswith("[synthetic drafter | ")
        if isinstance(report, JsonReport):
            assert json.loads(out)["drafter"] == "synthetic"


@pytest.mark.parametrize("shape", [TreeShape(4, 4, 1), TreeShape(6, 4, 5)])
def test_children(shape):
    """The first child is the script's token if its coin says so; the others never are."""
    drafter = drafter_cell(random_head(PLAIN), teacher_ends(), batch=2)
    proposer = SyntheticProposer(drafter, shape, 40, positions=20, acceptance=0.5)
    script = np.random.default_rng(1).integers(0, 40, (2, 20))
    script[0, 7] = 39  # its neighbours wrap around the vocabulary
    proposer.follow([script[0].tolist(), script[1, :12].tolist()])
    hidden = ms.Tensor(np.random.default_rng(2).standard_normal((2, 3, 24)).astype(np.float32))
    coins = toss(20, 0.5)
    for depth in (1, 2, 3):
        tokens, scores = (x.asnumpy() for x in proposer.children(hidden, int32([4, 15]), depth))
        assert tokens.shape == scores.shape == (2, 3, shape.branch)
        assert ((tokens >= 0) & (tokens < 40)).all()
        for b, place in enumerate((4 + depth, 15 + depth)):
            right = script[b, place] if b == 0 else 0  # past the end of a script
            for row in tokens[b]:
                assert (row[0] == right) == bool(coins[place])
                assert right not in row[1:]
                assert len(set(row.tolist())) == shape.branch
    np.testing.assert_allclose(np.exp(scores).sum(2), 1 if shape.branch > 1 else 0.99, rtol=1e-5)
    assert shape.depth * scores[0, 0, 0] > (scores[0, 0, 1] if shape.branch > 1 else -np.inf)


def test_a_head_that_is_not_finite_is_not_hidden():
    proposer = SyntheticProposer(
        drafter_cell(random_head(PLAIN), teacher_ends(), batch=1), TreeShape(2, 2, 2), 40, 20, 0.5
    )
    _, scores = proposer.children(ms.Tensor(np.full((1, 1, 24), np.nan, np.float32)), int32([3]), 1)
    assert np.isnan(scores.asnumpy()).all()


def test_the_random_head(model, tmp_path):
    decoder = tiny_eagle.decoder(model)
    head = synthetic_head(decoder, [0, 1])
    assert {name: w.shape for name, w in head.tensors.items()} == head.config.tensor_shapes()
    assert (head.config.hidden_size, head.config.taps) == (decoder.hidden_size, (0, 1))
    assert head.config.draft_vocab_size == decoder.vocab_size  # fewer than 8192 tokens
    assert sorted(head.d2t.tolist()) == list(range(decoder.vocab_size))
    again = synthetic_head(decoder, [0, 1])
    assert all((head.tensors[name] == again.tensors[name]).all() for name in head.tensors)
    large = synthetic_head(replace(decoder, vocab_size=30000, num_layers=12), None)
    assert large.config.draft_vocab_size == 8192
    assert large.config.taps == (2, 6, 9)
    assert np.unique(large.d2t).size == 8192


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        (None, r"^drafter\.taps: the teacher has 2 layers, too few"),
        ([0, 2], "the teacher has blocks 0 to 1"),
        ([1, 1], "one is repeated"),
    ],
)
def test_taps_that_the_teacher_does_not_have(model, taps, message):
    with pytest.raises(UserError, match=message):
        synthetic_head(tiny_eagle.decoder(model), taps)
