"""The stage profile: the same tokens as in one graph, and a planted slow stage shows."""

import time

import pytest
from support import tiny_eagle

from ms_eagle.benchmark import profile
from ms_eagle.benchmark.engines import Pair
from ms_eagle.benchmark.plan import Question
from ms_eagle.cycle.stages import STAGES, StagedGraphs
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.system.progress import Progress

QUIET = Progress(quiet=True)
SLOW = 0.05  # seconds
QUESTIONS = [Question(f"t:{i}", "t", "c", (text,), "t", i) for i, text in enumerate(["The fox", "Prices"])]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    model = tiny_eagle.model_dir("qwen3", tmp_path_factory.mktemp("profile"))
    overrides = ["drafter.kind=synthetic", "drafter.taps=[0,1]", "generation.max_new_tokens=8"]
    shape = ["tree.depth=2", "tree.budget=4"]  # few stages compile faster
    return tiny_eagle.config(model, None, [*overrides, *shape, "model.max_length=128"])


@pytest.fixture(scope="module")
def pair(config):
    return Pair.load(config, QUIET)


@pytest.fixture(scope="module")
def plain(pair, config):
    """A profile without a fault, and the graphs it has compiled."""
    kept = []
    init = StagedGraphs.__init__

    def keep(graphs, performance, mode, hook=None):
        init(graphs, performance, mode, hook)
        kept.append(graphs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedGraphs, "__init__", keep)
        return profile.profile(pair, config, QUESTIONS, 2, QUIET), kept[0]


def test_every_stage_has_its_time(plain):
    found, _ = plain
    assert tuple(found["stage_ms"]) == STAGES
    assert all(value > 0 for value in found["stage_ms"].values())
    assert found["cycle_ms"] == pytest.approx(sum(found["stage_ms"].values()))
    assert (found["turns"], [c["tokens"] for c in found["context"]]) == (2, [64])
    assert found["cycles"] >= 2
    for each in found["stage_quantiles_ms"].values():
        assert each["p50"] <= each["p90"] <= each["p99"]


def test_stages_give_the_tokens_of_one_graph(pair, config, plain):
    staged = profile.StagedEngine(pair, plain[1])
    options = GenerationOptions(12, ignore_eos=True)
    prompt = [5, 6, 7, 8, 9]
    (wanted,) = pair.alone([prompt], options)
    (found,) = pair.speculate([prompt], options, [wanted])
    (apart,) = staged.engine.run(pair.requests([prompt], options, [wanted]))
    assert apart.token_ids == found.completion.token_ids == wanted.completion.token_ids
    assert apart.accept_L == found.completion.accept_L


@pytest.mark.parametrize("stage", ["commit", "tensorize"])
def test_a_planted_slow_stage_shows_in_the_profile(pair, config, plain, monkeypatch, stage):
    staged = profile.StagedEngine(pair, plain[1])
    stages = plain[1].stages[pair.performance.facts.sizes.tiers[0]]
    real = getattr(stages, stage)

    def slow(*arguments):
        time.sleep(SLOW)
        return real(*arguments)

    monkeypatch.setattr(stages, stage, slow)
    means = profile.stage_means(staged.run([[5, 6, 7, 8]], GenerationOptions(6, ignore_eos=True)))
    assert means[stage] >= 1e3 * SLOW
