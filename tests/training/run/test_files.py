"""What a run keeps beside its checkpoint: its identity, its curves, its card, its configuration."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from support.new_heads import head

from ms_eagle.errors import UserError
from ms_eagle.training.config import load_training_config
from ms_eagle.training.run import curves
from ms_eagle.training.run.checkpoint import RunProgress
from ms_eagle.training.run.folder import RunFolder, identity
from ms_eagle.training.run.metrics import Acceptance, Metrics
from ms_eagle.training.run.model_card import CardData, card

YAML = """
data: {teacher: t.yaml, corpus: c.npz}
optimization: {steps: 10}
output: {directory: run, licence: apache-2.0}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(YAML)
    return file


def described(path, *overrides, corpus="c" * 64, teacher="t" * 64, workers=1):
    config = load_training_config(path, list(overrides))
    return identity(config, corpus=corpus, teacher=teacher, workers=workers)


def test_a_run_is_continued_with_what_it_was_started_with(tmp_path, path):
    folder = RunFolder(tmp_path / "run")
    folder.open(described(path, "head.layers=2"))  # a mistake that is seen before the first checkpoint
    folder.close()
    folder.open(described(path))
    folder.checkpoint.write_bytes(b"")
    folder.close()
    moved = ("data.teacher=u.yaml", "data.features=f", "data.wait=3", "output.directory=elsewhere")
    folder.open(described(path, *moved))
    folder.close()
    for changed, message in (
        (described(path, "head.layers=2"), "holds a run with head.layers=1, this one has 2: continue with"),
        (described(path, corpus="d" * 64), f"run with corpus_sha256={'c' * 64}, this one has {'d' * 64}"),
        (described(path, teacher="u" * 64), "run with teacher_sha256=ttt"),
        (described(path, workers=2), "run with workers=1, this one has 2"),
    ):
        with pytest.raises(UserError, match=message):
            folder.open(changed)
        folder.close()


def test_a_directory_is_one_run_of_one_process(tmp_path, path):
    first = RunFolder(tmp_path / "run")
    first.open(described(path))
    with pytest.raises(UserError, match=r"run/lock is held by process \d+"):
        RunFolder(tmp_path / "run").open(described(path))
    first.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"other holds thesis.tex, but no run"):
        RunFolder(tmp_path / "other").open(described(path))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimization.epochs=2", "both are set of optimization.epochs and optimization.steps"),
        ("optimization.steps=null", "neither is set"),
        ("optimization.step=3", "unknown key optimization.step .*nearest valid key: optimization.steps"),
        ("data.held_out=1", "data.held_out is 1; expected a number"),
        ("output.dtype=bfloat16", "expected float16 or float32"),
        ("nonsense", "expected section.key=value, such as optimization.learning_rate=4e-4"),
    ],
)
def test_mistakes_in_a_configuration_are_named(path, override, message):
    with pytest.raises(UserError, match=message):
        load_training_config(path, [override])


def figures(count: int):
    steps = [
        {
            "step": float(i + 1),
            "rate": 1e-3 * (1 - i / count),
            "loss": 9.0 / (1 + i / 40),
            "grad_norm": 1.0 + i % 7,
            "accuracy_1": 0.6,
            "accuracy_2": 0.4,
            "positions": 100.0,
        }
        for i in range(count)
    ]
    evaluations = [
        {"step": float(s), "accept_L": 1 + s / 300, "depth_1": 0.6, "depth_2": 0.4}
        for s in range(0, count + 1, 100)
    ]
    return steps, evaluations


@pytest.mark.parametrize("count", [0, 1, 300, 5000])
def test_curves_are_drawn_however_few_figures_there_are(tmp_path, count):
    curves.draw(tmp_path / "curves.svg", *figures(count), "a run of <x>")
    text = (tmp_path / "curves.svg").read_text()
    root = ElementTree.fromstring(text)
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a run of <x>" in words
    assert {"training: loss", "learning rate", "held out: drafts right up to each depth"} <= set(words)
    if count >= 300:
        assert {"step 1", "step 2", "depth 1", "depth 2"} <= set(words)
    if count:
        last = count // 100 * 100
        assert f"best: {1 + last / 300:.3f} after step {last}" in words
    assert len(text) < 150_000  # however long the run


def test_a_long_line_keeps_its_extremes():
    rows = [{"step": i} for i in range(10_000)]
    values = np.ones(10_000)
    values[[3333, 7777]] = 9.0, -9.0
    points = curves._series("loss", rows, values).points
    assert len(points) <= 400
    assert {(3333, 9.0), (7777, -9.0)} <= set(points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_smoothing_is_a_mean_of_what_is_there():
    values = np.random.default_rng(0).standard_normal(60)
    means = curves.smoothed(values)
    assert means[0] == pytest.approx(values[:4].mean())
    assert means[30] == pytest.approx(values[27:34].mean())
    assert means[59] == pytest.approx(values[56:].mean())


def test_the_card_says_what_the_head_is(path):
    data = CardData(
        "hf:org/teacher",
        "ab" * 32,
        "sglang",
        {"self": 5, "code": 7},
        {"self": 50, "code": 90},
        "cd" * 32,
        0.975,
        0.968,
    )
    steps, evaluations = figures(300)
    text = card(
        load_training_config(path),
        head(fc_norm=True),
        data,
        RunProgress(300, 5400.0, 300, 2.0),
        Acceptance(1234, (0.75, 0.5)),
        steps,
        evaluations,
        400,
    )
    front = text.split("---")[1]
    assert "license: apache-2.0" in front
    for line in (
        "# EAGLE-3 head for hf:org/teacher",
        "The layout `sglang` is for SGLang",
        "It has fc_norm (EAGLE-3.1)",
        "| draft vocabulary | 6 of 96 tokens |",
        "| taps (inputs of teacher blocks) | 2, 4, 6 |",
        "| all | 12 | 140 |",
        "97.50% of them, and 96.80% of those held out.",
        "| steps | 300 of 400 planned |",
        "| hours | 1.50 |",
        "| positions learnt from | 30000 |",
        "Simulated on 1234 held-out positions",
        "**Mean accepted length 1.250**",
        "| share | 0.750 | 0.500 |",
        f"| 300 | 2.000 | {np.mean([9.0 / (1 + i / 40) for i in range(250, 300)]):.3f} | 0.600 | 0.400 |",
    ):
        assert line in text, line


def test_the_card_names_no_place_of_the_machine(path):
    config = load_training_config(path, ["head.start=/home/somebody/runs/first"])
    data = CardData("hf:org/teacher", "ab" * 32, "sglang", {"self": 5}, {"self": 50}, "cd" * 32, 0.9, 0.9)
    progress = RunProgress(300, 5400.0, 300, 2.0)
    text = card(config, head(), data, progress, Acceptance(1234, (0.75,)), *figures(300), 400)
    assert "| started from | first |" in text
    assert "somebody" not in text


def test_what_a_killed_run_left_half_written_is_removed(tmp_path, path):
    folder = RunFolder(tmp_path / "run")
    folder.open(described(path))
    folder.close()
    folder.head.mkdir()
    left = [folder.directory / ".checkpoint.npz.abc.tmp", folder.head / ".model.safetensors.x.tmp"]
    for each in left:
        each.write_bytes(b"half")
    folder.open(described(path))
    folder.close()
    assert not any(each.exists() for each in left)


def test_the_record_of_a_run_is_readable(tmp_path, path):
    folder = RunFolder(tmp_path / "run")
    folder.open(described(path))
    folder.close()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["optimization.steps"] == 10
    assert record["head.start"] == "teacher"


def test_a_run_that_starts_anew_has_its_first_evaluation_once(tmp_path):
    metrics = Metrics(tmp_path, 2, 2)
    for _ in range(2):  # the first one was killed before it had a checkpoint
        metrics.begin(0)
        metrics.evaluation(0, Acceptance(4, (0.5, 0.25)))
    metrics.evaluation(5, Acceptance(4, (0.5, 0.25)))
    assert [row["step"] for row in metrics.evaluations()] == [0, 5]
    metrics.begin(5)
    assert [row["step"] for row in metrics.evaluations()] == [0, 5]
    metrics.begin(4)
    assert [row["step"] for row in metrics.evaluations()] == [0]
