"""Bundles: the tokens of the engine they come from, on first and later calls; nothing else is accepted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import tiny_eagle
from support.damage import cut, flip, rewrite

from ms_eagle.benchmark.run import Job, run
from ms_eagle.chat.report import JsonReport
from ms_eagle.chat.session import Dialog, Session
from ms_eagle.config.sections import load_config
from ms_eagle.deployment.assembly import Randomly
from ms_eagle.deployment.bundle import CONFIG, WEIGHTS, Bundle
from ms_eagle.deployment.export import export_bundle
from ms_eagle.deployment.loading import load_deployment
from ms_eagle.deployment.memory import zeros
from ms_eagle.deployment.mindir import MindIR
from ms_eagle.deployment.session import load_session
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.loading import load_engine
from ms_eagle.paths import ROOT
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system import quiet
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template
from ms_eagle.tree.shape import TreeShape

QUIET = Progress(quiet=True)
GREEDY = GenerationOptions(7, SamplingParams(), ignore_eos=True)


def sampled(seed):
    params = SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.3, seed=seed)
    return GenerationOptions(7, params, ignore_eos=True)


def prompts(count, vocabulary=90):
    rng = np.random.default_rng(5)
    return [rng.integers(3, vocabulary, rng.integers(1, 40)).tolist() for _ in range(count)]


def tokens(engine, prompts, options):
    return [completion.token_ids for completion in engine.generate(prompts, options)]


def load(path):
    bundle = Bundle.open(path)
    return load_deployment(bundle, bundle.config([]), QUIET)


@pytest.fixture(scope="module")
def deployment(made):
    return load(made)


@pytest.fixture(scope="module")
def engine(config):
    return load_engine(config)


def test_two_exports_of_one_configuration_are_the_same_bytes(config, made, tmp_path):
    again = tmp_path / "again.bundle"
    export_bundle(config, "cpu", again, QUIET, trees=[TreeShape(4, 2, 2)])

    def content(bundle):
        return {p.relative_to(bundle): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}

    assert content(again) == content(made)


def test_every_input_of_a_graph_is_read(made):
    # One that is not takes MindSpore's CPU runtime off its fast path: 3 ms a call of the default model.
    for record in Bundle.open(made).manifest.graphs:
        graph = MindIR.read(made / record.file)
        taken = {name for node in graph.nodes for name in node.input}
        taken |= {each.name for each in graph.model.graph.output}
        unread = [each.name for each in graph.model.graph.input if each.name not in taken]
        assert not unread, (record.file, unread)


def test_a_bundle_is_measured_without_the_model_it_came_from(made, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question_id": 1, "category": "talk", "turns": ["ab", "c"]}\n')
    bundle = Bundle.open(made)
    asked = ["generation.max_new_tokens=5", "generation.ignore_eos=true"]
    run(Job(bundle.config(asked), (questions,), None, tmp_path / "out", deployed=bundle), progress=QUIET)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["turns"], summary["tokens_match"], summary["new_tokens"]) == (2, 1.0, 10)
    assert [each["name"] for each in summary["manifest"]["weights"]["model"]] == [WEIGHTS]


def test_bundle_equals_engine_for_fifty_prompts(deployment, engine):
    asked, deployed = prompts(50), deployment.engine()
    plain = tokens(engine, asked, GREEDY)
    drawn = [tokens(engine, [prompt], sampled(seed))[0] for seed, prompt in enumerate(asked)]
    for _ in range(2):  # the first calls, and later ones over used caches
        assert tokens(deployed, asked, GREEDY) == plain
        assert [tokens(deployed, [p], sampled(seed))[0] for seed, p in enumerate(asked)] == drawn
    assert len(set(drawn)) > 40
    assert deployed.compilations == 3
    assert tokens(deployment.engine("4x2x2"), asked[:8], GREEDY) == plain[:8]
    alone = deployment.engine(drafter=False)
    assert alone.graphs.facts.drafter == "none"
    assert tokens(alone, asked[:8], GREEDY) == plain[:8]
    assert tokens(alone, asked[3:4], sampled(3)) == drawn[3:4]


def test_state_does_not_leak_between_requests(deployment):
    deployed = deployment.engine()
    first, second = prompts(2)
    alone = tokens(deployed, [first], sampled(1)), tokens(deployed, [second], GREEDY)
    assert tokens(deployed, [second], GREEDY) == alone[1]
    assert tokens(deployed, [first], sampled(1)) == alone[0]
    deployed.graphs.clear()
    assert tokens(deployed, [first], sampled(1)) == alone[0]


def test_graphs_share_weights_and_caches_or_say_so(deployment):
    tokens(deployment.engine(), prompts(1), GREEDY)
    cells = [deployment.loader.cell(record) for record in deployment.bundle.manifest.graphs]
    memory = deployment.loader.memory
    memory.check_shared()
    name = "teacher.cache.key.0"
    places = {cell.parameters_dict()[name].data_ptr() for cell in cells}
    assert len(places) == 1
    cells[0].parameters_dict()[name].set_data(zeros(deployment.bundle.manifest.states[0]))
    with pytest.raises(RuntimeError, match=f"{name} is in 2 places of memory"):
        memory.check_shared()
    deployment.engine().graphs.clear()  # gives every graph the same zeros
    memory.check_shared()


def test_session_streams_stops_and_reports_alike(made, config, deployment, engine, capsys):
    options = ["generation.max_new_tokens=12", "generation.ignore_eos=true"]
    template = load_template(engine.directory)
    settings = load_config(made / CONFIG, options)
    text = engine.generate(
        [template.encode([{"role": "user", "content": "Tell me"}], engine.tokenizer)],
        GenerationOptions(12, ignore_eos=True),
    )[0].text
    stop = text[4:6]
    settings = load_config(made / CONFIG, [*options, f"generation.stop={json.dumps([stop])}"])
    heard = []
    for one in (engine, deployment.engine()):
        session = Session(one, template, settings, QUIET)
        assert session.answer([Dialog(("Tell me", "More"), "here")], JsonReport())
        heard.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for ours, theirs in zip(*heard, strict=True):
        for key in ("text", "token_ids", "finish_reason", "drafter", "kernels", "cycles", "accept_L"):
            assert ours[key] == theirs[key], key
    assert heard[0][0]["finish_reason"] == "stop"
    bundle = Bundle.open(made)
    session = load_session(bundle, bundle.config(options), QUIET, raw=False)
    pieces = []
    completion = session.conversation().say("Tell me", session.options, pieces.append)
    assert "".join(pieces) == completion.text == text


def test_no_model_code_is_imported(made):
    cells = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).replace("kernels.", "ms_eagle.kernels.", 1)
        if path.is_relative_to(ROOT / "kernels")
        else ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("ms_eagle", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        if "(nn.Cell)" in path.read_text(encoding="utf-8")
    }
    assert {
        "ms_eagle.models.teacher",
        "ms_eagle.cycle.cycle",
        "ms_eagle.kernels.native",
        "ms_eagle.models.layers",
    } <= cells
    code = (
        "import sys, runpy, atexit\n"
        "names = lambda: (name for name in sys.modules if name.startswith('ms_eagle'))\n"
        "atexit.register(lambda: print(*names(), file=sys.stderr))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "tools" / "infer.py"), "--deployed", str(made)]
        + ["--prompt", "Tell me", "--json", "--startup", "--set", "generation.temperature=0.9"]
        + ["--set", "generation.max_new_tokens=3"],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in {*quiet._PLACES, "GLOG_v"}},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["drafter"] == "eagle3"
    assert "[start | imports" in done.stderr
    names = set(done.stderr.splitlines().pop().split())
    assert "ms_eagle.deployment.graphs" in names
    assert not names & (
        cells | {"ms_eagle.loading", "ms_eagle.assembly", "ms_eagle.cycle.graphs", "ms_eagle.tree.growth"}
    )


@pytest.mark.parametrize("name", ["llama", "openpangu_tied", "qwen2"])  # qwen3 is above, with a head
def test_every_architecture_exports_and_reloads(name, tmp_path):
    config = tiny_eagle.config(tiny_eagle.model_dir(name, tmp_path), None, ["execution.batch_size=2"])
    export_bundle(config, "cpu", tmp_path / "b", QUIET)
    deployed = load(tmp_path / "b").engine()
    asked = prompts(5)
    assert tokens(deployed, asked, GREEDY) == tokens(load_engine(config), asked, GREEDY)


def test_stock_operators_share_their_caches_too(tmp_path):
    model = tiny_eagle.model_dir("openpangu", tmp_path)
    export_bundle(tiny_eagle.config(model, None, ["execution.kernels=eager"]), "cpu", tmp_path / "b", QUIET)
    assert not (tmp_path / "b" / "kernels").exists()
    deployed = load(tmp_path / "b").engine()
    native = load_engine(tiny_eagle.config(model, None))  # the same tokens, and compiled sooner
    asked = prompts(4)
    assert tokens(deployed, asked, GREEDY) == tokens(native, asked, GREEDY)


def test_wrong_weights_version_and_options_are_refused(copy):
    flip(copy / WEIGHTS)
    bundle = Bundle.open(copy)
    with pytest.raises(UserError, match=r"weights\.safetensors does not match its hash"):
        load(copy)
    with pytest.raises(UserError, match="a bundle is compiled for the value it was exported with"):
        bundle.config(["tree.budget=3"])
    with pytest.raises(UserError, match="--tree 9x9x9: the bundle has 6x3x3, 4x2x2"):
        bundle.config([], "9x9x9")
    assert bundle.config([], "4x2x2").tree.budget == 4
    rewrite(copy, lambda manifest: manifest["versions"].update(mindspore="1.0"))
    with pytest.raises(UserError, match=r"was exported with MindSpore 1\.0"):
        load(copy)


def test_command_line_refuses_in_one_line(copy):
    cut(copy / WEIGHTS)
    for tool, options in (("infer", ["--prompt", "x", "--deployed"]), ("inspect_bundle", [])):
        done = subprocess.run(
            [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *options, str(copy)],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_places_that_hold_no_bundle_are_refused(tmp_path, monkeypatch):
    for name, message in {"": "holds no manifest", "none": "not a directory", "b" * 300: "too long"}.items():
        with pytest.raises(UserError, match=message):
            Bundle.open(tmp_path / name)

    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(UserError, match=r"cannot read .*Permission denied"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize(
    ("target", "overrides", "message"),
    [
        ("cpu", ["execution.mode=reference"], "execution.mode is reference"),
        ("cpu", ["execution.trace=t.jsonl"], "a bundle writes no trace"),
        ("cpu", ["drafter.kind=synthetic"], "a measurement that needs the model code"),
        ("cpu", ["execution.commit=clone"], "a baseline for measurements"),
        ("ascend", [], "model.dtype is float32"),
        ("ascend", ["model.dtype=float16", "execution.kernels=eager"], "fused attention"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_loading(config, target, overrides, message, tmp_path):
    source = Path(config.model.source)
    changed = tiny_eagle.config(source, Path(config.drafter.source), overrides)
    with pytest.raises(UserError, match=message):
        export_bundle(changed, target, tmp_path / "b", QUIET)
    assert not any(tmp_path.iterdir())


def test_out_must_be_free(config, made, tmp_path):
    with pytest.raises(UserError, match="holds a bundle already"):
        export_bundle(config, "cpu", made, QUIET)
    with pytest.raises(UserError, match="no directory that may be written"):
        export_bundle(config, "cpu", tmp_path / "none" / "b", QUIET)
    changed = load_config(made / CONFIG, ["model.source=nowhere"])
    with pytest.raises(UserError, match="expected a directory with the model's config"):
        export_bundle(changed, "cpu", tmp_path / "b", QUIET, randomly=Randomly())
