"""Traces of real runs: what they hold, how they end, and that their cycles can be run again."""

import json

import numpy as np
import pytest
from support import tiny_eagle

from ms_eagle.engine.requests import GenerationOptions, TurnName
from ms_eagle.errors import UserError
from ms_eagle.reference.invariants import InvariantError
from ms_eagle.reference.trace import STAGES, read_trace
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system import files

OPTIONS = GenerationOptions(12, SamplingParams(temperature=0.7, seed=3), ignore_eos=True)
NAMES = [TurnName("a", 1), TurnName("b", 1), TurnName("a", 2)]
OVERRIDES = [
    "execution.mode=reference",
    "execution.batch_size=2",
    "drafter.kind=synthetic",
    "drafter.taps=[0,1]",
    "tree.budget=5",
    "tree.depth=2",
    "tree.branch=3",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An engine with a trace, its prompts and its answers; ``b`` ends earlier than ``a``."""
    directory = tmp_path_factory.mktemp("recorder")
    model = tiny_eagle.model_dir("llama", directory)
    path = directory / "trace.jsonl"
    engine = tiny_eagle.engine(model, None, [*OVERRIDES, f"execution.trace={path}"])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 300, length).tolist() for length in (9, 1, 20)]
    options = [OPTIONS, GenerationOptions(5, OPTIONS.sampling, ignore_eos=True), OPTIONS]
    completions = engine.generate(prompts, options, names=NAMES)
    return engine, model, path, prompts, completions


@pytest.fixture(scope="module")
def trace(run):
    return read_trace(run[2])


def test_the_manifest_names_configuration_versions_and_weights(run, trace):
    model = run[1]
    manifest = trace.manifest
    assert manifest["schema"] == 1
    assert manifest["config"]["tree"] == {"budget": 5, "depth": 2, "branch": 3, "confidence": 0.0}
    assert (manifest["device"], manifest["kernels"], manifest["drafter"]) == ("CPU", "eager", "synthetic")
    assert {"ms_eagle", "python", "mindspore", "numpy"} <= set(manifest["versions"])
    hashes = {f["file"]: (f["bytes"], f["sha256"]) for f in manifest["weights"]["model"]["files"]}
    weights = model / "model.safetensors"
    assert hashes["model.safetensors"] == (weights.stat().st_size, files.sha256(weights))
    assert len(manifest["git"]["commit"]) == 40


def test_every_answer_is_there_from_prefill_to_finish(run, trace):
    engine, _, _, prompts, completions = run
    assert [(t.prefill["prompt"], t.prefill["turn"]) for t in trace.turns] == NAMES
    assert (trace.torn, trace.errors) == (False, [])
    for turn, prompt, completion in zip(trace.turns, prompts, completions, strict=True):
        assert turn.prefill["token_ids"] == prompt
        assert turn.prefill["text"] == engine.tokenizer.decode(prompt, skip_special_tokens=False)
        assert turn.prefill["options"]["sampling"]["seed"] == 3
        assert turn.finish["token_ids"] == list(completion.token_ids)
        assert turn.finish["text"] == completion.text
        assert turn.finish["accept_L"] == list(completion.accept_L)
        assert turn.finish["finish_reason"] == "length"
        assert turn.finish["checks"]["ties"] == []
        assert set(turn.finish["checks"]["cache_difference"]) == {"teacher", "drafter"}


def test_cycles_tell_tree_choices_path_tokens_and_times(run, trace):
    _, _, _, prompts, completions = run
    hostless = []  # the times of cycles after a prefill, which no cycle of the same request came before
    for turn, prompt, completion in zip(trace.turns, prompts, completions, strict=True):
        n, root, emitted, pieces = len(prompt) - 1, prompt[len(prompt) - 1], [], ""
        assert len(turn.cycles) == completion.cycles
        for cycle in turn.cycles:
            tree, path = cycle["tree"], cycle["path"]
            assert (cycle["n"], cycle["root"], tree["tokens"][0]) == (n, root, root)
            assert {len(tree[name]) for name in tree} == {6}
            assert cycle["accept_L"] == len(path) - 1 == len(cycle["emitted"]) - 1
            assert [cycle["choices"][row] for row in path] == cycle["emitted"]
            assert [tree["tokens"][row] for row in path[1:]] == cycle["emitted"][: len(path) - 1]
            assert {*cycle["seconds"], "host"} == {*STAGES, "checks", "host"}
            if "host" not in cycle["seconds"] and cycle["seconds"] not in hostless:
                hostless.append(cycle["seconds"])
            assert min(cycle["seconds"].values()) >= 0
            n, root = n + len(path), cycle["emitted"][len(path) - 1]
            emitted += cycle["emitted"]
            pieces += "".join(cycle["pieces"])
        assert emitted[: len(completion.token_ids)] == list(completion.token_ids)
        assert pieces.startswith(completion.text.rstrip("�"))
    assert 1 <= len(hostless) <= len(trace.turns)
    assert max(cycle["accept_L"] for turn in trace.turns for cycle in turn.cycles) == 2


def test_a_broken_invariant_ends_the_trace_with_all_that_led_to_it(run, monkeypatch):
    engine, _, path, prompts, _ = run
    stages = engine.graphs.stages[engine.graphs.facts.sizes.tiers[0]]
    sound, calls = stages.accept, []

    def wrong(*arguments):
        accepted, rows, emitted, count = sound(*arguments)
        calls.append(None)
        return accepted, rows, emitted + (1 if len(calls) == 2 else 0), count

    with monkeypatch.context() as patch:
        patch.setattr(stages, "accept", wrong)
        with pytest.raises(InvariantError) as error:
            engine.generate(prompts[:2], OPTIONS, names=[TurnName("x", 1), TurnName("y", 2)])
    trace = read_trace(path)
    (record,) = trace.errors
    assert json.loads(path.read_text().splitlines()[-1]) == record
    assert (record["error"], record["invariant"]) == ("InvariantError", "output.emitted")
    assert record["message"] == str(error.value)
    assert record["stage"] == "accept"
    assert record["caches"]["teacher"]["shape"][0] == 2
    first = trace.turns[len(trace.turns) - 2].cycles[0]
    x, y = record["rows"]
    assert (x["prompt"], x["turn"], y["prompt"], y["turn"]) == ("x", 1, "y", 2)
    assert x["token_ids"] == [*prompts[0], *first["emitted"]]
    assert x["n"] == len(x["token_ids"]) - 1
    assert x["tree"]["tokens"][0] == first["emitted"][len(first["emitted"]) - 1]
    assert {x["options"]["sampling"]["seed"], y["options"]["sampling"]["seed"]} == {3}


def test_an_error_outside_a_cycle_has_no_tree(run, monkeypatch):
    engine, _, path, prompts, _ = run
    prefill = engine.graphs.prefill()
    before = len(read_trace(path).errors)
    with monkeypatch.context() as patch:
        patch.setattr(prefill, "_cell", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(prompts[:1], OPTIONS)
    trace = read_trace(path)
    assert len(trace.errors) == before + 1
    record = trace.errors[before]
    assert (record["error"], record["stage"], record["rows"][0]["tree"]) == ("ZeroDivisionError", None, None)


def test_a_prompt_that_is_refused_ends_the_trace_too(run):
    engine, _, path, _, _ = run
    with pytest.raises(UserError, match="prompt is empty"):
        engine.generate([[]], OPTIONS)
    errors = read_trace(path).errors
    assert errors[len(errors) - 1]["error"] == "UserError"
    assert "prompt is empty" in errors[len(errors) - 1]["message"]


def test_a_run_that_cannot_be_loaded_leaves_a_manifest_and_an_error(tmp_path):
    path = tmp_path / "trace.jsonl"
    model = tiny_eagle.model_dir("llama", tmp_path)
    with pytest.raises(UserError, match="max_length"):
        tiny_eagle.engine(model, None, [*OVERRIDES, "model.max_length=999999", f"execution.trace={path}"])
    trace = read_trace(path)
    assert trace.manifest["config"]["model"]["max_length"] == 999999
    (record,) = trace.errors
    assert record["stage"] == "load"
    assert "max_length" in record["message"]
