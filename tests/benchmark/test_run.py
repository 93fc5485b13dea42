"""Whole runs over a tiny model: losslessness, resuming, failures, workers, and planted faults."""

import json
import shutil

import pytest
import torch
import transformers
from support import tiny_eagle
from support.turn_files import timeless

from ms_eagle.benchmark import turn_log
from ms_eagle.benchmark.engines import Pair
from ms_eagle.benchmark.pair import Answer
from ms_eagle.benchmark.run import Job, run
from ms_eagle.benchmark.sweep import Point, Sweep, run_sweep
from ms_eagle.benchmark.sweep_page import write
from ms_eagle.errors import UserError
from ms_eagle.system.distributed import Worker
from ms_eagle.system.progress import Progress

QUIET = Progress(quiet=True)
SYNTHETIC = ["drafter.kind=synthetic", "drafter.taps=[0,1]", "generation.max_new_tokens=8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def model(root):
    return tiny_eagle.model_dir("qwen3", root)


@pytest.fixture(scope="module")
def prompts(root):
    path = root / "talk.jsonl"
    questions = [["The fox", "and the dog?"], ["Prices", "rose"], ["One"]]
    path.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in questions))
    return path


@pytest.fixture(scope="module", autouse=True)
def loads_once():
    """One pair of engines for all runs that need the same: compiling is most of the work here."""
    real, known = Pair.load.__func__, {}

    def load(kind, config, progress):
        execution = config.execution.model_copy(update={"threads": None})
        key = str((config.model, execution, config.drafter, config.tree))
        if key not in known:
            known[key] = real(kind, config, progress)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pair, "load", classmethod(load))
        yield


@pytest.fixture(scope="module")
def job(model, prompts):
    def make(out, *overrides, files=(prompts,), limit=None):
        return Job(tiny_eagle.config(model, None, [*SYNTHETIC, *overrides]), files, limit, out)

    return make


@pytest.fixture(scope="module")
def whole(job, root):
    """An uninterrupted run: its directory and its summary."""
    out = root / "whole"
    return out, run(job(out), QUIET).summary


def test_every_turn_is_measured_and_identical(whole):
    out, summary = whole
    records = turn_log.read(out / "turns.jsonl")
    assert [r["turn_name"] for r in records] == ["talk:1/1", "talk:1/2", "talk:2/1", "talk:2/2", "talk:3/1"]
    assert [r["first"] for r in records] == ["teacher", "speculative", "speculative", "teacher", "teacher"]
    assert (summary["turns"], summary["tokens_match"], summary["failed"]) == (5, 1.0, 0)
    assert summary["manifest"]["drafter"] == "synthetic"
    assert summary == json.loads((out / "summary.json").read_text())
    for record in records:
        assert record["new_tokens"] == len(record["token_ids"]) > 0
        assert record["speedup"] == pytest.approx(
            record["speculative"]["tokens_per_second"] / record["teacher"]["tokens_per_second"]
        )
        assert len(record["accept_L"]) == record["speculative"]["cycles"] <= record["teacher"]["cycles"]
        for side in ("teacher", "speculative"):
            assert 0 < record[side]["first_token_s"] <= record[side]["prefill_s"] + record[side]["decode_s"]
    assert records[1]["prompt_tokens"] > records[0]["prompt_tokens"] + records[0]["new_tokens"]


class Stops:
    """Raises what it is told to at the n-th call of ``Pair.speculate`` after the warm-up."""

    def __init__(self, monkeypatch, error, calls):
        self.left, real = calls + 1, Pair.speculate

        def speculate(pair, prompts, options, known):
            self.left -= 1
            if self.left == 0:
                raise error
            return real(pair, prompts, options, known)

        monkeypatch.setattr(Pair, "speculate", speculate)


@pytest.mark.parametrize("calls", [1, 4])
def test_an_interrupted_run_goes_on_where_it_was(job, whole, tmp_path, monkeypatch, calls):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        Stops(patch, KeyboardInterrupt(), calls)
        with pytest.raises(KeyboardInterrupt):
            run(job(out), QUIET)
    kept = (out / "turns.jsonl").read_bytes()
    assert kept.count(b"\n") == calls - 1
    (out / "turns.jsonl").write_bytes(kept + b'{"turn_name": "talk:2')  # killed while it wrote
    assert run(job(out), QUIET).summary["turns"] == 5
    assert (out / "turns.jsonl").read_bytes().startswith(kept)
    assert timeless(out) == timeless(whole[0])


def test_a_finished_run_loads_nothing(job, whole, monkeypatch):
    monkeypatch.setattr(Pair, "load", None)
    assert run(job(whole[0]), QUIET).summary["speedup"] == whole[1]["speedup"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(overrides=["tree.budget=5"]), r"config\.tree\.budget is 6, here it is 5"),
        (dict(limit=3), "limit is None, here it is 3"),
    ],
)
def test_another_run_in_the_same_place_is_refused(job, whole, change, message):
    other = job(whole[0], *change.get("overrides", ()), limit=change.get("limit"))
    with pytest.raises(UserError, match=message):
        run(other, QUIET)


def test_turns_of_unknown_origin_are_refused(job, whole, tmp_path):
    shutil.copy(whole[0] / "turns.jsonl", tmp_path)
    with pytest.raises(UserError, match=r"holds turns but no manifest\.json"):
        run(job(tmp_path), QUIET)


def test_a_failed_turn_ends_nothing_and_is_tried_again(job, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        Stops(patch, RuntimeError("device\nfault"), 3)
        summary = run(job(tmp_path / "out"), QUIET).summary
    failed = [f for f in summary["failures"]]
    assert [f["turn_name"] for f in failed] == ["talk:2/1", "talk:2/2"]
    assert failed[0]["kind"] == "RuntimeError"
    assert failed[0]["message"] == "device fault"
    assert "earlier turn of the conversation failed" in failed[1]["message"]
    assert (summary["turns"], summary["failed"]) == (3, 2)
    assert run(job(tmp_path / "out"), QUIET).summary["failed"] == 0
    assert timeless(tmp_path / "out") == timeless(whole[0])


def test_a_prompt_that_does_not_fit_is_recorded(job, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": ["word " * 300]}) + "\n" + json.dumps({"turns": ["One"]}) + "\n")
    summary = run(job(tmp_path / "out", files=(path,)), QUIET).summary
    (failure,) = summary["failures"]
    assert failure["turn_name"] == "long:1/1"
    assert "leaves no room for an answer" in failure["message"]
    assert summary["turns"] == 1


def test_a_planted_difference_makes_tokens_match_fall(job, model, whole, tmp_path, monkeypatch):
    """One token changed in one answer: that turn alone differs, with the teacher's margin at that point."""
    real, at = Pair.speculate, 3

    def planted(pair, prompts, options, known):
        answers = real(pair, prompts, options, known)
        if len(prompts[0]) != planted_prompt:
            return answers
        completion = answers[0].completion
        ids = list(completion.token_ids)
        ids[at] += 1
        changed = type(completion)(**{**vars(completion), "token_ids": tuple(ids)})
        return [Answer(changed, answers[0].prefill, answers[0].decode)]

    records = turn_log.read(whole[0] / "turns.jsonl")
    planted_prompt = records[4]["prompt_tokens"]
    assert [r["prompt_tokens"] for r in records].count(planted_prompt) == 1
    monkeypatch.setattr(Pair, "speculate", planted)
    summary = run(job(tmp_path / "out"), QUIET).summary
    assert summary["tokens_match"] == pytest.approx(4 / 5)
    (difference,) = summary["differences"]
    ids = records[4]["token_ids"]
    assert (difference["turn_name"], difference["position"]) == ("talk:3/1", at)
    assert (difference["teacher_id"], difference["speculative_id"]) == (ids[at], ids[at] + 1)
    assert difference["same_prompt"]
    kept = turn_log.read(tmp_path / "out" / "turns.jsonl")[4]
    assert kept["speculative_token_ids"] != kept["token_ids"] == ids
    assert difference["margin"] == pytest.approx(reference_margin(model, ids[:at]), rel=1e-3)


def reference_margin(model, answer):
    """The gap of the two best logits by transformers, after the prompt of ``talk:3/1`` and ``answer``."""
    from ms_eagle.text.loading import load_tokenizer
    from ms_eagle.text.template import load_template

    prompt = load_template(model).encode([{"role": "user", "content": "One"}], load_tokenizer(model))
    teacher = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        logits = teacher(torch.tensor([[*prompt, *answer]])).logits[0, -1]
    best = torch.topk(logits, 2).values
    return float(best[0] - best[1])


def test_workers_make_the_run_of_one_process(job, whole, tmp_path):
    out = tmp_path / "out"
    assert run(job(out), QUIET, Worker(1, 2)).summary is None
    assert {r["turn_name"] for r in turn_log.read(out / "turns.rank1.jsonl")} == {"talk:2/1", "talk:2/2"}
    outcome = run(job(out), QUIET, Worker(0, 2))
    assert outcome.incomplete == {}
    assert timeless(out) == timeless(whole[0])
    assert sorted(path.name for path in out.glob("turns*")) == ["turns.jsonl"]


def test_a_worker_that_died_is_named_and_its_turns_are_kept(job, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        Stops(patch, KeyboardInterrupt(), 2)
        with pytest.raises(KeyboardInterrupt):
            run(job(out), QUIET, Worker(1, 2))
    outcome = run(job(out), QUIET, Worker(0, 2))
    assert outcome.incomplete == {1: 1}
    assert outcome.summary["incomplete_ranks"] == {"1": 1}
    assert outcome.summary["turns"] == 4
    assert run(job(out), QUIET).incomplete == {}
    assert timeless(out) == timeless(whole[0])


@pytest.mark.slow
def test_a_batch_gives_the_same_answers(job, whole, tmp_path):
    summary = run(job(tmp_path / "out", "execution.batch_size=2"), QUIET).summary
    records = turn_log.read(tmp_path / "out" / "turns.jsonl")
    assert [r["token_ids"] for r in records] == [r["token_ids"] for r in timeless(whole[0])]
    assert [r["group"] for r in records] == [0, 0, 0, 0, 2]
    assert summary["tokens_match"] == 1.0


def test_a_sweep_is_a_run_for_each_point_and_failed_ones_end_nothing(job, tmp_path, monkeypatch):
    sweep = Sweep(
        title="T",
        question="Q",
        set={"execution.device": "CPU"},
        grid={"generation.max_new_tokens": [3, 5]},
        points=[Point(name="no such device", set={"execution.kernels": "fused"})],
    )
    configure = lambda more: job(tmp_path, *more).config  # noqa: E731
    make = lambda config, out: Job(config, job(out).prompts, 2, out)  # noqa: E731
    measured = run_sweep(sweep, configure, make, tmp_path / "out", QUIET)
    assert [m.figures["turns"] for m in measured] == [2, 2, 0]
    assert "FlashAttentionScore runs on Ascend NPUs only" in measured[2].figures["error"]
    for m, most in zip(measured, (3, 5), strict=False):
        lengths = [r["new_tokens"] for r in turn_log.read(tmp_path / "out" / m.directory / "turns.jsonl")]
        assert max(lengths) == most
    write(tmp_path / "out", sweep, measured, make(configure([]), tmp_path))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    names = [point["name"] for point in summary["points"]]
    assert names == ["max_new_tokens 3", "max_new_tokens 5", "no such device"]

    def load(config, progress):
        raise UserError("loaded")

    monkeypatch.setattr(Pair, "load", load)  # what is measured loads nothing; what failed is tried again
    again = run_sweep(sweep, configure, make, tmp_path / "out", QUIET)
    assert [m.figures for m in again[:2]] == [m.figures for m in measured[:2]]
    assert again[2].figures["error"] == "loaded"


def test_there_must_be_a_drafter(job, tmp_path):
    with pytest.raises(UserError, match=r"drafter\.kind is none, so there is nothing to compare"):
        run(job(tmp_path / "out", "drafter.kind=none"), QUIET)
    assert not (tmp_path / "out").exists()
