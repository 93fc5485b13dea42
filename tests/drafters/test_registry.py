"""A kind of drafter that only this file knows, through everything that drives drafters."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from support import tiny_eagle

from ms_eagle.benchmark.run import Job, run
from ms_eagle.deployment.bundle import Bundle
from ms_eagle.deployment.export import export_bundle
from ms_eagle.deployment.loading import load_deployment
from ms_eagle.drafters import registry
from ms_eagle.drafters.base import Drafter, Needs
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.loading import load_engine
from ms_eagle.reference.page.view import page
from ms_eagle.reference.trace import read_trace
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress

QUIET = Progress(quiet=True)
DEPTH = 3


class Echo(Drafter):
    """Guesses that the text goes on as a repetition of its last two tokens: a chain, no weights, no cache.

    The state is the root and the token before it, ``[B, 2]`` int32, the root last.
    """

    def __init__(self, depth):
        super().__init__()
        self.depth, self.pool = depth, depth
        column = np.arange(depth + 1, dtype=np.int32)[None]
        self.parents, self.depths = ms.Tensor(np.maximum(column - 1, 0)), ms.Tensor(column)
        self.scores = ms.Tensor(-0.1 * column.astype(np.float32))

    def empty(self, batch):
        return ops.zeros((batch, 2), ms.int32)

    def read(self, window, taps, start, count, state):
        return self.last_two(window, count, state)

    def take(self, taps, emitted, n, count, state):
        return self.last_two(ops.cat((state[:, 1:], emitted), 1), count, state)

    def last_two(self, tokens, count, state):
        """Columns ``count - 1`` and ``count`` of ``[B, R]``; the state where ``count`` is 0."""
        batch = count.shape[0]
        some = (count > 0).reshape(batch, 1)
        first = ops.select(count > 0, count - 1, ops.zeros_like(count)).reshape(batch, 1)
        pair = ops.gather_d(tokens, 1, ops.cat((first, first + 1), 1))
        return ops.select(ops.broadcast_to(some, pair.shape), pair, state)

    def propose(self, root, n, active, state, *hints):
        batch = root.shape[0]
        pair = ops.cat((root.reshape(batch, 1), state[:, :1]), 1)
        tokens = ops.cat((pair,) * (self.depth // 2 + 1), 1)[:, : self.depth + 1]
        spread = (ops.broadcast_to(each, tokens.shape) for each in (self.scores, self.parents, self.depths))
        scores, parents, depths = spread
        return (tokens, scores, parents, depths), n < 0

    def resized(self, depth, branch):
        return Echo(depth)


class EchoBlueprint:
    needs, files = Needs(), ()

    def check(self, shape):
        if shape.branch > 1:
            raise UserError(f"tree.branch is {shape.branch}; echo drafts chains: set tree.branch=1.")

    def build(self, teacher, backend, shape, *, slots, positions):
        return Echo(shape.depth)


@pytest.fixture(scope="module", autouse=True)
def kind():
    echo = registry.Kind(
        "echo",
        "Echo",
        open=lambda config, decoder, progress: EchoBlueprint(),
        random=lambda config, decoder: EchoBlueprint(),
        notice="an echo",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.KINDS, "echo", echo)
        yield echo


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_eagle.model_dir("llama", tmp_path_factory.mktemp("echo"), tie_word_embeddings=True)


CHAIN = ["tree.branch=1", f"tree.depth={DEPTH}", f"tree.budget={DEPTH}", "drafter.kind=echo"]
OPTIONS = [
    GenerationOptions(30, SamplingParams(), ignore_eos=True),
    GenerationOptions(20, SamplingParams(temperature=1.2, seed=2, repetition_penalty=1.2), ignore_eos=True),
]


def config(model, *overrides):
    return tiny_eagle.config(model, None, [*CHAIN, *overrides])


def prompts(count=4):
    rng = np.random.default_rng(0)
    return [rng.integers(3, 200, length).tolist() for length in (9, 1, 2, 17)[:count]]


@pytest.fixture(scope="module")
def answers(model):
    """The teacher's own."""
    teacher = tiny_eagle.engine(model, None)
    return [[c.token_ids for c in teacher.generate(prompts(), each)] for each in OPTIONS]


def test_engine(model, answers):
    engine = load_engine(config(model, "execution.batch_size=2"))
    for options, tokens in zip(OPTIONS, answers, strict=True):
        completions = engine.generate(prompts(), options)
        assert [c.token_ids for c in completions] == tokens
        assert {c.drafter for c in completions} == {"echo"}
    greedy = engine.generate(prompts(), OPTIONS[0])
    assert sum(sum(c.accept_L) for c in greedy) > 0  # a tied teacher repeats itself


def test_reference_mode_and_trace(model, answers, tmp_path, kind):
    path = tmp_path / "trace.jsonl"
    reference = ("execution.mode=reference", "execution.batch_size=2", f"execution.trace={path}")
    engine = load_engine(config(model, *reference))
    completions = engine.generate(prompts(2), OPTIONS[0])
    assert [c.token_ids for c in completions] == answers[0][:2]
    trace = read_trace(path)
    assert trace.manifest["drafter"] == "echo"
    assert len(trace.turns) == 2
    assert all(turn.finish["checks"]["cache_difference"].keys() == {"teacher"} for turn in trace.turns)
    assert kind.label in page(trace)


def test_export(model, answers, tmp_path):
    out = tmp_path / "echo.bundle"
    export_bundle(config(model), "cpu", out, QUIET)
    bundle = Bundle.open(out)
    engine = load_deployment(bundle, bundle.config([]), QUIET).engine()
    completions = engine.generate(prompts(), OPTIONS[0])
    assert [c.token_ids for c in completions] == answers[0]
    assert {c.drafter for c in completions} == {"echo"}


def test_benchmark(model, tmp_path):
    questions = tmp_path / "talk.jsonl"
    questions.write_text(json.dumps({"turns": ["The fox"]}) + "\n")
    job = Job(config(model, "generation.max_new_tokens=9"), (questions,), None, tmp_path / "out", 1)
    summary = run(job, QUIET).summary
    assert (summary["turns"], summary["tokens_match"]) == (1, 1.0)
    assert summary["manifest"]["drafter"] == "echo"
    assert set(summary["stage_ms"]) >= {"draft", "tensorize", "verify", "accept", "commit", "extend"}


def test_what_it_cannot_draft_is_refused_by_name(model):
    with pytest.raises(UserError, match=r"tree\.branch is 3; echo drafts chains"):
        load_engine(tiny_eagle.config(model, None, ["drafter.kind=echo"]))
