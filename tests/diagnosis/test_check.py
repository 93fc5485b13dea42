"""A head that predicts is found good; read wrongly, the cause is named; a random one is found low."""

import json

import numpy as np
import pytest
from support import fitted_head, tiny_eagle

from ms_eagle import loading
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.diagnosis.check import Bench, Passages, check_head, diagnose
from ms_eagle.diagnosis.report import lines, record
from ms_eagle.diagnosis.suspects import as_it_is, suspects
from ms_eagle.diagnosis.verdict import judge
from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template
from ms_eagle.tree.shape import TreeShape

SHAPE, QUIET = TreeShape(6, 3, 3), Progress(quiet=True)
LONG = ["model.max_length=128"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_eagle.model_dir("llama", tmp_path_factory.mktemp("head_check"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def good(model):
    return fitted_head.write(model, model.parent / "good")


@pytest.fixture(scope="module")
def bench(model):
    """The teacher's answers, read once with every block tapped."""
    config = tiny_eagle.config(model, None, LONG)
    opened = loading.open_model(config, QUIET)
    backend = loading.start_device(config, QUIET, SHAPE.depth)
    teacher = loading.load_teacher(
        opened, backend, QUIET, sizes=Sizes(1, 8, 128), taps=tuple(range(opened.decoder.num_layers))
    )
    passages = Passages(config, opened, teacher, backend.name, 128, QUIET).read(None)

    def make(head):
        return Bench(head, teacher, backend, passages, SHAPE), opened.decoder

    return make


def diagnosis(bench, model, directory, wanted):
    """The verdict, with only the suspects that ``wanted`` is found in and those of the taps."""
    head = load_head(directory, teacher=tiny_eagle.decoder(model))
    measuring, decoder = bench(head)
    others = [r for r in suspects(head, decoder) if wanted in r.name or r.config == head.config]
    agreement, tried = diagnose(measuring, as_it_is(head), others, QUIET)
    return agreement, judge(agreement, tried, "float32")


def test_a_head_that_predicts(model, good):
    report = check_head(tiny_eagle.config(model, good, LONG))
    agreement = report.agreement
    assert agreement.positions[0] > 100
    assert agreement.top1[0] > 0.98  # the fit is exact but for rounding
    assert min(agreement.top1) > 0.8
    assert agreement.accept_chain > 2.4
    assert agreement.coverage == 1.0
    assert report.verdict.code == "good"
    assert report.suspects == ()
    shown = "\n".join(lines(report))
    assert "format   SpecForge, 1 layer of width 512" in shown
    assert "taps     inputs of blocks 0, 1, 2, from eagle_aux_hidden_state_layer_ids [0, 1, 2]" in shown
    assert "rope     theta 10000, default scaling" in shown
    assert "words    160 of 447 tokens, among them 100.0 % of the teacher's choices" in shown
    assert "verdict  good: the head fits its teacher." in shown
    values = json.loads(json.dumps(record(report)))
    assert values["verdict"]["code"] == "good"
    assert [depth["depth"] for depth in values["depths"]] == [1, 2, 3]
    assert values["depths"][0]["top1"] == agreement.top1[0]
    assert values["accept_L"]["chain"] == agreement.accept_chain


def test_the_prediction_is_what_drafting_accepts(model, good):
    """On the measured answers the engine accepts about what the check promises."""
    config = [*LONG, "tree.branch=1", "tree.budget=3"]
    engine = tiny_eagle.engine(model, good, config)
    template = load_template(model)
    prompts = [
        template.encode([{"role": "user", "content": prompt}], engine.tokenizer)
        for prompt in fitted_head.PROMPTS
    ]
    completions = engine.generate(prompts, GenerationOptions(100))
    accepted = [a for completion in completions for a in completion.accept_L[:-1]]
    assert np.mean(accepted) > 2.2


def test_taps_numbered_otherwise(bench, model):
    wrong = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    directory = fitted_head.write(model, model.parent / "taps", told=wrong)
    agreement, verdict = diagnosis(bench, model, directory, "taps")
    assert agreement.top1[0] < 0.2
    assert verdict.code == "suspect"
    assert verdict.text.startswith("with taps 0, 1, 2 top-1 would be 1.00 instead of 0.0")
    assert verdict.text.endswith("set drafter.taps=[0, 1, 2].")


def test_another_rotation(bench, model):
    directory = fitted_head.write(model, model.parent / "rope", told={"rope_theta": 1e6})
    agreement, verdict = diagnosis(bench, model, directory, "rope_theta")
    assert agreement.accept_chain < 2
    assert verdict.code == "suspect"
    assert verdict.text.startswith("with rope_theta 10000 top-1 would be 1.00")


def test_features_normed_or_not(bench, model):
    directory = fitted_head.write(model, model.parent / "norm", norm_output=True, told={"norm_output": False})
    agreement, verdict = diagnosis(bench, model, directory, "norm_output")
    assert agreement.top1[0] > 0.98  # the first depth knows nothing of it
    assert agreement.top1[1] < 0.5
    assert verdict.code == "suspect"
    assert verdict.text.startswith("with norm_output true")


@pytest.mark.parametrize("name", ["double_norm", "raw_logits"])
def test_norms_that_no_config_tells(bench, model, name):
    directory = fitted_head.write(model, model.parent / name, variants={name: True})
    _, verdict = diagnosis(bench, model, directory, name)
    assert verdict.code == "suspect"
    assert verdict.text.startswith(f"with {name} true top-1 would be ")
    assert verdict.text.endswith(f"set drafter.{name}=true.")


def test_a_vocabulary_in_another_order(bench, model):
    shuffled = fitted_head.write(
        model, model.parent / "order", order=lambda count: np.random.default_rng(0).permutation(count)
    )
    agreement, verdict = diagnosis(bench, model, shuffled, "taps")
    assert agreement.top1[0] < 0.1
    assert verdict.code == "suspect"
    assert verdict.text.startswith("with the draft vocabulary in ascending order top-1 would be 1.00")


def test_a_random_head_on_a_text(model):
    directory = tiny_eagle.head_dir(model, model.parent, name="random", taps=(0, 1, 2))
    text = "The quick brown fox jumps over the lazy dog. " * 3 + "Prices rose 3.75% in 2024.\n\ndef fib(n):"
    config = tiny_eagle.config(model, directory, ["tree.depth=1", "tree.budget=3", "drafter.taps=[0,1,2]"])
    report = check_head(config, ("notes.txt", text))
    assert report.text == "notes.txt"
    assert report.taps_from == "drafter.taps"
    assert 20 < report.agreement.positions[0] < 96
    assert report.verdict.code == "low"
    assert "no usual suspect explains it" in report.verdict.text
    assert len(report.suspects) > 3
    assert record(report)["suspects"][0]["name"] == report.suspects[0].name
    assert any(line.startswith("tried    taps ") for line in lines(report))


def test_refusals(model, good):
    with pytest.raises(UserError, match=r"drafter\.source is missing"):
        check_head(tiny_eagle.config(model, None))
    with pytest.raises(UserError, match="has 2 tokens"):
        check_head(tiny_eagle.config(model, good), ("a.txt", "a"))
    with pytest.raises(UserError, match=r"tree\.branch is 200"):
        check_head(tiny_eagle.config(model, good, ["tree.branch=200", "tree.depth=1"]))
