"""Losslessness over a grid: every architecture, useless and perfect drafters, every kind of tree."""

import numpy as np
import pytest
from support import tiny, tiny_engine

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

SHAPE = TreeShape(6, 3, 3)
PROMPT_LENGTHS = (1, 2, 9, 20)
ARCHITECTURES = ("llama_tied", "openpangu", "qwen2", "qwen3")
GREEDY = GenerationOptions(24, SamplingParams(), ignore_eos=True)
WARM = GenerationOptions(
    14, SamplingParams(temperature=1.3, seed=3, repetition_penalty=1.3, top_p=0.95), ignore_eos=True
)


def tokens(completions):
    return [c.token_ids for c in completions]


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama", seed=3)


@pytest.fixture(scope="module")
def plain(model):
    return tiny_engine.plain(model)


@pytest.mark.parametrize(
    ("name", "acceptance", "backend"),
    [
        *((name, a, tiny_engine.DEFAULT) for name in ARCHITECTURES for a in (None, 1.0)),
        ("qwen3", None, tiny_engine.EAGER),
    ],
)
def test_every_architecture_with_a_useless_and_with_a_perfect_drafter(name, acceptance, backend):
    model = tiny.make(name, seed=5)
    prompts = tiny_engine.prompts(*PROMPT_LENGTHS)
    engine = tiny_engine.eagle(model, SHAPE, acceptance=acceptance, backend=backend)
    got = engine.generate(prompts, GREEDY)
    alone = tiny_engine.plain(model, backend=backend)
    assert tokens(got) == tokens(alone.generate(prompts, GREEDY))
    for completion in got:
        accepted = completion.accept_L
        assert sum(accepted) + len(accepted) >= completion.new_tokens
        if acceptance == 1.0 and completion.prompt_tokens > 1:
            # Perfect until the answer's own end; the last cycle runs past the script.
            assert set(accepted[:-1]) == {SHAPE.depth}
        if acceptance == 1.0 and completion.prompt_tokens == 1:
            assert accepted[0] == 0  # nothing is committed yet, so nothing was drafted
        if acceptance is None:
            assert np.mean(accepted) < 1


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (1, 4, 3), (4, 4, 1), (5, 1, 5), (39, 5, 3), (7, 7, 2)],
)
def test_every_shape_of_tree(model, plain, shape):
    prompts = tiny_engine.prompts(1, 13, 24, seed=1)
    engine = tiny_engine.eagle(model, TreeShape(*shape), acceptance=0.7)
    for options in (GREEDY, WARM):
        got = engine.generate(prompts, options)
        assert tokens(got) == tokens(plain.generate(prompts, options))
        assert max(max(c.accept_L) for c in got) <= min(shape[0], shape[1])
