"""Taps and final states against transformers, whatever the chunks; what a source refuses."""

import numpy as np
import pytest
import torch
from support import tiny, tiny_engine, toy_corpus

from ms_eagle.cycle.sizes import Sizes
from ms_eagle.errors import UserError
from ms_eagle.training.features.source import LiveFeatures, tokens
from ms_eagle.training.features.teacher import TeacherFeatures

WIDTH = tiny.SIZES["hidden_size"]


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama_tied").eval()


def reader(model, *, batch=3, chunk=4, taps=(0, 1), backend=tiny_engine.DEFAULT) -> TeacherFeatures:
    teacher = tiny_engine.teacher(model, Sizes(batch, chunk, 32), taps=taps, backend=backend)
    return TeacherFeatures(teacher, WIDTH, chunk)


@pytest.mark.parametrize("backend", [tiny_engine.DEFAULT, tiny_engine.EAGER], ids=["default", "eager"])
def test_features_are_those_of_transformers(model, backend):
    # More conversations than sequences, of lengths below, at and above whole chunks.
    corpus = toy_corpus.corpus([5, 1, 8, 31, 4, 12, 2])
    source = LiveFeatures(corpus, reader(model, backend=backend))
    asked = [6, 3, 0, 1, 2, 4, 5, 3]
    for number, found in zip(asked, source.read(asked), strict=True):
        ids = torch.tensor(tokens(corpus, number), dtype=torch.long)[None]
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states
        wanted = torch.cat([states[0][0], states[1][0]], 1).numpy()
        assert found.taps.dtype == found.final.dtype == np.float16
        np.testing.assert_allclose(found.taps, wanted, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(found.final, states[-1][0].numpy(), rtol=2e-3, atol=2e-3)


def test_refuses_what_the_teacher_cannot_read(model):
    features = reader(model)
    with pytest.raises(UserError, match="conversation 4 has 34 tokens; expected 1 to 33"):
        list(features.compute([(4, np.zeros(34, np.int32))]))
    with pytest.raises(UserError, match="conversation 0 has 0 tokens"):
        list(features.compute([(0, np.zeros(0, np.int32))]))
    with pytest.raises(UserError, match=r"conversation 2 holds the token id 96, outside .* 96"):
        list(features.compute([(2, np.array([5, 96], np.int32))]))


def test_refuses_what_float16_cannot_hold(model):
    large = tiny.make("llama_tied").eval()
    with torch.no_grad():
        large.model.embed_tokens.weight[7] *= 1e8
    with pytest.raises(UserError, match=r"conversation 1: a hidden state .* beyond float16's 65504"):
        list(reader(large).compute([(0, np.array([4, 5])), (1, np.array([4, 7]))]))
