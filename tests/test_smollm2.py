"""The default model against transformers with the same weights: real text, real tokenizer."""

import json

import numpy as np
import pytest
import torch
import transformers

from ms_eagle.config.sections import load_config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.loading import load_engine
from ms_eagle.paths import CONFIGS
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.text.template import load_template

pytestmark = pytest.mark.real_model

CONFIG = CONFIGS / "smollm2_135m.yaml"
NEAR_TIE = 1e-3
TOKENS = 64
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about rain in autumn.",
    "Explain 2024 in 3 words.",
    "def fibonacci(n):\n    # complete this Python function",
    "List five fruits and one sentence about each of them.",
    "Translate 'good morning' into Spanish, German and 中文.",
    "A train leaves at 14:05 and arrives at 16:50. How long does it travel?",
    "Who are you? 🙂",
    "Summarise the plot of Romeo and Juliet for a child, in a few friendly sentences.",
    "Why does ice float on water, and what would happen to lakes in winter if it sank instead? " * 3,
]


@pytest.fixture(scope="module")
def engine():
    batch = f"execution.batch_size={len(PROMPTS)}"
    return load_engine(load_config(CONFIG, ["execution.device=CPU", "model.weights=float32", batch]))


@pytest.fixture(scope="module")
def peer(smollm2):
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2, dtype=torch.float32, attn_implementation="eager"
    )


def test_greedy_continuations_equal_transformers(engine, peer, record_property):
    template = load_template(engine.directory)
    prompts = [template.encode([{"role": "user", "content": p}], engine.tokenizer) for p in PROMPTS]
    completions = engine.generate(prompts, GenerationOptions(TOKENS, ignore_eos=True))
    ties = []
    for text, prompt, completion in zip(PROMPTS, prompts, completions, strict=True):
        ours = list(completion.token_ids)
        assert len(ours) == TOKENS
        with torch.no_grad():
            # One forward over our own answer says what transformers chooses at each of its positions.
            logits = peer(torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 : -1]
        theirs = logits.argmax(1).tolist()
        differing = [i for i in range(TOKENS) if ours[i] != theirs[i]]
        if not differing:
            continue
        first = differing[0]
        margin = float(logits[first, theirs[first]] - logits[first, ours[first]])
        ties.append({"prompt": text, "token": first, "margin": margin})
        assert margin < NEAR_TIE, f"{text!r} differs at token {first} by {margin}"
    record_property("near_ties", json.dumps(ties))
    print(f"near-ties: {ties}")


def test_speculation_writes_the_same_text():
    """A drafter that is right seven times in ten, and its mistakes, on real text: greedy and sampled."""
    shared = ["execution.device=CPU", "execution.batch_size=5"]
    engine = load_engine(load_config(CONFIG, [*shared, "drafter.kind=none"]))
    tree = ["drafter.kind=synthetic", "tree.budget=7", "tree.depth=4"]
    speculative = load_engine(load_config(CONFIG, [*shared, *tree]))
    template = load_template(engine.directory)
    prompts = [template.encode([{"role": "user", "content": p}], engine.tokenizer) for p in PROMPTS[:5]]
    warm = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=7)
    for options in (GenerationOptions(40), GenerationOptions(24, warm)):
        got = speculative.generate(prompts, options)
        want = engine.generate(prompts, options)
        assert [c.token_ids for c in got] == [c.token_ids for c in want]
        assert [c.text for c in got] == [c.text for c in want]
        accepted = [a for c in got for a in c.accept_L]
        assert 0.5 < np.mean(accepted) < 4
    assert {c.drafter for c in got} == {"synthetic"}


def test_config_is_the_published_models(smollm2):
    config = transformers.AutoConfig.from_pretrained(smollm2)
    assert config.model_type == "llama"
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49152)
    assert np.isclose(config.rms_norm_eps, 1e-5)
    assert config.tie_word_embeddings
