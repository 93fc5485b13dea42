"""ms_eagle behind MindFormers 1.9: its own pipeline, streamers, chat, Trainer and Auto classes, no mocks."""

import io
import json
import os
import shutil
import threading
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from rich.console import Console
from support import reference_sampling, tiny_eagle
from support.sessions import Recorder
from transformers import AutoTokenizer

from ms_eagle.chat.session import Dialog, Session
from ms_eagle.errors import UserError
from ms_eagle.mindformers import EagleConfig, EagleForCausalLM
from ms_eagle.mindformers.options import merged, row_options, unpadded
from ms_eagle.mindformers.plugin import DIRECTORY
from ms_eagle.mindformers.scores import on_numpy
from ms_eagle.mindformers.session import PipelineSession
from ms_eagle.system.progress import Progress

# isort: split
from mindformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    MindFormerConfig,
    TextIteratorStreamer,
    TextStreamer,
    Trainer,
    build_context,
    pipeline,
)
from mindformers.core.parallel_config import build_parallel_config
from mindformers.generation.streamers import BaseStreamer
from mindformers.models import build_network

LENGTH = 96
EXECUTION = {"device": "CPU", "prefill_chunk": 8, "batch_size": 2}
PROMPTS = ["Hello world", "Hi"]


def eagle_sections(head: Path) -> dict:
    return {
        "drafter": {"kind": "eagle3", "source": str(head)},
        "tree": {"budget": 4, "depth": 2, "branch": 2},
        "execution": EXECUTION,
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A teacher with a padding token, as SmolLM2's, and a head."""
    parent = tmp_path_factory.mktemp("mindformers")
    model = tiny_eagle.model_dir("llama", parent)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"pad_token": "<|im_end|>"}))
    (model / "generation_config.json").write_text(
        json.dumps(
            {"eos_token_id": [2, 50], "pad_token_id": 2, "max_new_tokens": 7, "transformers_version": "4"}
        )
    )
    return model, tiny_eagle.head_dir(model, parent, taps=(0, 1))


@pytest.fixture(scope="module")
def tokenizer(paths):
    return AutoTokenizer.from_pretrained(paths[0])


@pytest.fixture(scope="module")
def plain(paths):
    return EagleForCausalLM(EagleConfig(str(paths[0]), LENGTH, eagle={"execution": EXECUTION}))


@pytest.fixture(scope="module")
def spec(paths):
    return EagleForCausalLM(EagleConfig(str(paths[0]), LENGTH, eagle=eagle_sections(paths[1])))


@pytest.fixture(scope="module")
def ids(tokenizer):
    return tokenizer("Hello world")["input_ids"]


@pytest.fixture(scope="module")
def native():
    """MindFormers' context for ``use_legacy: False``; tests without it run in its legacy default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPU_AFFINITY", "False")
        affinity, before = os.sched_getaffinity(0), dict(os.environ)
        build_context(context(use_legacy=False))
        yield
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, affinity)


def context(**options) -> dict:
    return {
        "run_mode": "predict",
        "use_parallel": False,
        "context": {"mode": 0, "device_target": "CPU"},
        "parallel": {},
        **options,
    }


def same(left, right) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


# --- before any context: MindFormers' legacy default ---


def test_a_legacy_yaml_registers_and_builds_the_model(paths, plain, ids, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MindFormers copies what it registers into ./modules
    monkeypatch.setenv("REGISTER_PATH", str(DIRECTORY))
    settings = {
        "type": "EagleConfig",
        "auto_register": "eagle_mindformers.EagleConfig",
        "teacher": str(paths[0]),
        "seq_length": LENGTH,
        "eagle": eagle_sections(paths[1]),
        "max_decode_length": 16,
    }
    arch = {"type": "EagleForCausalLM", "auto_register": "eagle_mindformers.EagleForCausalLM"}
    network = build_network(MindFormerConfig(model_config=settings, arch=arch))
    assert network.engine.graphs.facts.drafter == "eagle3"
    assert network.generation_config.max_length == 16
    assert same(network.generate(ids, max_new_tokens=6), plain.generate(ids, max_new_tokens=6))


# --- generate() ---

OPTIONS = [
    {"max_new_tokens": 12},
    {"max_length": 20, "max_new_tokens": None},
    {"max_new_tokens": 9, "repetition_penalty": 1.7, "min_new_tokens": 6},
    {"max_new_tokens": 9, "do_sample": True, "top_k": 20, "top_p": 0.8, "temperature": 1.3, "seed": 7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_speculation_changes_nothing_and_calls_repeat(spec, plain, tokenizer, options):
    batch = tokenizer(PROMPTS, padding=True)
    found = spec.generate(**batch, **options)
    assert {completion.drafter for completion in spec.completions} == {"eagle3"}
    assert same(found, plain.generate(**batch, **options))
    assert same(found, spec.generate(**batch, **options))
    assert all(row.dtype == np.int32 for row in found)
    alone = spec.generate(batch["input_ids"][0], **options)
    assert np.array_equal(alone[0], found[0])


def test_lengths_and_ends(plain, ids):
    answer = plain.generate(ids, max_new_tokens=8)[0][len(ids) :].tolist()
    third = answer[2]
    stop = answer.index(third) + 1
    for eos in (third, [third], [5, third]):
        assert (
            plain.generate(ids, max_new_tokens=8, eos_token_id=eos)[0][len(ids) :].tolist() == answer[:stop]
        )
    late = plain.generate(ids, max_new_tokens=8, eos_token_id=third, min_length=len(ids) + 6)[0][len(ids) :]
    assert len(late) >= 6
    assert third not in late[:6]
    assert len(plain.generate(ids)[0]) == len(ids) + 7  # generation_config.json
    assert plain.generate(ids, max_new_tokens=0)[0].tolist() == list(ids)
    assert len(plain.generate(ids, max_new_tokens=500, eos_token_id=[])[0]) == LENGTH
    never = plain.generate(ids, max_new_tokens=8, min_new_tokens=2, eos_token_id=[-1, 10**6])
    assert never[0][len(ids) :].tolist() == answer
    own = GenerationConfig(max_new_tokens=2, eos_token_id=[])
    assert plain.generate(ids, own)[0][len(ids) :].tolist() == answer[:2]


def test_scores_are_those_of_mindformers_processors(spec, ids):
    options = {"max_new_tokens": 8, "repetition_penalty": 1.9, "min_new_tokens": 5, "eos_token_id": [2, 396]}
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    out = spec.generate([ids, ids], **options, **wanted)
    answer = out.sequences[0][len(ids) :]
    assert len(out.scores) == len(out.logits) == len(answer)
    assert [int(step[1].argmax()) for step in out.scores] == answer.tolist()  # the device chose just that
    assert not np.array_equal(out.logits[0], out.scores[0])
    assert np.isneginf(out.scores[4][0, 396])
    assert np.isfinite(out.scores[5][0, 396])
    sampled = spec.generate(ids, do_sample=True, top_k=3, max_new_tokens=6, seed=1, **wanted)
    for step, token in zip(sampled.scores, sampled.sequences[0][len(ids) :], strict=True):
        assert step[0, token] > -50000
        assert (step[0] > -50000).sum() == 3
    assert spec.generate(ids, max_new_tokens=1, return_dict_in_generate=True).scores is None


@pytest.mark.parametrize(
    "options", [{"top_p": 0.7}, {"top_p": 0.3, "top_k": 6}, {"top_p": 0.0}, {"top_k": 4, "top_p": None}]
)
def test_sampling_keeps_the_tokens_that_mindformers_keeps(plain, options):
    config = merged(GenerationConfig(do_sample=True, temperature=1.4), options)
    warper = on_numpy(plain.get_logits_warper(config))
    (asked,) = row_options(config, [3], capacity=LENGTH, vocab_size=64, seed=1)
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(size=(1, 64), scale=2).astype(np.float32)
        theirs = np.flatnonzero(warper(np.zeros((1, 3), int), logits.copy())[0] > -50000)
        ours = reference_sampling.kept(logits[0], asked.sampling)
        assert sorted(ours) == theirs.tolist()


def test_min_new_tokens_are_those_of_each_row():
    config = merged(GenerationConfig(min_length=6), {"min_new_tokens": 3, "eos_token_id": 2})
    rows = row_options(config, [2, 9], capacity=LENGTH, vocab_size=64, seed=1)
    assert [(row.sampling.min_length, row.sampling.end_ids) for row in rows] == [(6, (2,)), (12, (2,))]


def test_seeds(spec, ids):
    options = {"do_sample": True, "max_new_tokens": 8, "top_k": 0}
    first, second = (spec.generate(ids, seed=seed, **options)[0] for seed in (1, 2))
    assert not np.array_equal(first, second)
    rows = spec.generate([ids, ids], seed=1, **options)
    assert np.array_equal(rows[0], first)
    assert not np.array_equal(rows[1], first)
    np.random.seed(4)  # what `seed` of a YAML file does
    drawn = spec.generate(ids, **options)[0]
    assert not np.array_equal(drawn, spec.generate(ids, **options)[0])
    np.random.seed(4)
    assert np.array_equal(drawn, spec.generate(ids, **options)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4}, "num_beams is 4"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty is 1.2"),
        ({"parallel_decoding": "la"}, "parallel_decoding is 'la'"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size is 2"),
        ({"max_new_token": 2}, "did you mean max_new_tokens?"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 8.5}, "max_new_tokens is 8.5; expected a whole number"),
        ({"max_length": None, "max_new_tokens": None}, "both None"),
        ({"do_sample": "False"}, "do_sample is 'False'; expected True or False"),
        ({"do_sample": True, "temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"repetition_penalty": "x"}, "repetition_penalty is 'x'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"pad_token_id": [2]}, "pad_token_id is"),
        ({"generation_config": {"max_new_tokens": 2}}, "generation_config is a dict"),
        ({"update": 1}, "no option update"),
        ({"no_repeat_ngram_size": np.array([1, 2])}, "no_repeat_ngram_size is"),
        ({"streamer": "x"}, "streamer is a str"),
        ({"do_sample": True, "temperature": 0}, "temperature is 0"),
        ({"do_sample": True, "top_p": 1.5}, "top_p: found 1.5"),
        ({"seed": 2**64}, "seed is"),
        ({"max_length": 3, "max_new_tokens": None}, "max_length is 3"),
        ({"min_length": 30, "eos_token_id": list(range(9))}, "end_ids"),
        ({"logits_processor": [1]}, "logits_processor is not supported"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(plain, ids, options, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        plain.generate(ids, **options)


def test_prompts_that_cannot_be(plain, ids):
    with pytest.raises(UserError, match="differ in length"):
        plain.generate([ids, ids[:2]])
    with pytest.raises(UserError, match="row 1 holds nothing but"):
        plain.generate([[5, 6], [2, 2]], attention_mask=[[1, 1], [0, 0]])
    with pytest.raises(UserError, match="row 1 begins with the padding token 2"):
        plain.generate([[5, 6], [2, 2]])
    with pytest.raises(UserError, match="attention_mask: found an array of shape"):
        plain.generate([5, 6], attention_mask=[1])
    with pytest.raises(UserError, match="row 0 has zeros between ones"):
        plain.generate([5, 6, 7], attention_mask=[1, 0, 1])
    with pytest.raises(UserError, match="token_type_ids"):
        plain.generate([5, 6, 7], token_type_ids=[0, 0, 1])
    with pytest.raises(UserError, match="seq_length of 96"):
        plain.generate([5] * 200, max_new_tokens=1)
    with pytest.raises(UserError, match="the prompt is empty"):
        plain.generate([])
    with pytest.raises(UserError, match="unpack it"):
        plain.generate({"input_ids": ids})
    with pytest.raises(UserError, match="token id 9999"):
        plain.generate([9999], max_new_tokens=1)


def test_padding_is_what_the_mask_says():
    ids = np.array([[2, 5, 2], [2, 6, 7]])
    for mask, prompts in [
        ([[1, 1, 0], [1, 1, 1]], [[2, 5], [2, 6, 7]]),
        ([[0, 1, 1], [0, 0, 1]], [[5, 2], [7]]),
        ([[1, 1, 1], [1, 1, 1]], ids.tolist()),
    ]:
        for pad in (2, None):
            assert unpadded(ids, np.array(mask), pad) == prompts


@pytest.mark.parametrize(
    ("rows", "pad"),
    [
        ([[5, 2]], 2),  # one prompt may end with the padding token
        ([[5, 0, 0], [6, 7, 8]], None),  # without a padding token there is no padding
        ([[2, 5, 2], [2, 6, 2]], 2),
        ([[5, 0], [6, 7]], 2),
    ],
)
def test_without_a_mask_rows_are_whole(rows, pad):
    assert unpadded(np.array(rows), None, pad) == rows


@pytest.mark.parametrize(
    "rows", [[[5, 2, 2]], [[2, 2, 5]], [[5, 2], [6, 7]], [[2, 5], [6, 7]], [[5, 2, 2]] * 2]
)
def test_without_a_mask_what_looks_padded_is_refused(rows):
    with pytest.raises(UserError, match="padding token 2"):
        unpadded(np.array(rows), None, 2)


# --- streamers, chat, pipeline, Trainer ---


class Heard(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values.append(value)

    def end(self):
        self.ended += 1


def test_streamers(spec, tokenizer, ids, capsys):
    answer = spec.generate(ids, max_new_tokens=9)[0]
    heard = Heard()
    spec.generate(ids, max_new_tokens=9, streamer=heard)
    assert heard.values[0].tolist() == [list(ids)]
    assert heard.values[1:] == answer[len(ids) :].tolist()
    assert all(type(value) is int for value in heard.values[1:])
    assert heard.ended == 1

    spec.generate(ids, max_new_tokens=9, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == tokenizer.decode(answer, skip_special_tokens=True) + "\n"

    pieces = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=spec.generate, args=(ids,), kwargs={"max_new_tokens": 9, "streamer": pieces}
    )
    thread.start()
    text = "".join(iter(pieces.__next__, None))
    thread.join()
    assert text == tokenizer.decode(answer[len(ids) :], skip_special_tokens=True)

    batch = tokenizer(PROMPTS, padding=True)
    heard = Heard()
    outputs = spec.generate(**batch, max_new_tokens=9, streamer=heard)
    for row, prompt in enumerate(PROMPTS):
        told = [token for value in heard.values[1:] for token in value[row]]
        assert told == outputs[row][len(tokenizer(prompt)["input_ids"]) :].tolist()


def test_there_is_no_forward_pass_and_no_checkpoint(spec, ids, tmp_path):
    for call in (spec, spec.infer, spec.forward, spec.infer_mcore):
        with pytest.raises(UserError, match=r"call generate\(\)"):
            call(ms.Tensor([ids]))
    with pytest.raises(UserError, match="save_pretrained"):
        ms.save_checkpoint(spec, str(tmp_path / "model.ckpt"))
    assert list(tmp_path.iterdir()) == []


def test_chat(spec, plain, tokenizer):
    reply, history = spec.chat(tokenizer, "Hello", max_new_tokens=6, do_sample=False)
    assert (reply, history) == plain.chat(tokenizer, "Hello", max_new_tokens=6, do_sample=False)
    again, longer = spec.chat(tokenizer, "More", history=list(history), max_new_tokens=6, do_sample=False)
    assert [turn["role"] for turn in longer] == ["user", "assistant"] * 2
    assert again == longer[3]["content"]
    for history in ("abc", [1], [{"role": "user"}], {"role": "user", "content": "a"}):
        with pytest.raises(UserError, match="chat: history is"):
            spec.chat(tokenizer, "Hello", history=history)
    with pytest.raises(UserError, match="chat: query is a int"):
        spec.chat(tokenizer, 1)


def test_pipelines(native, spec, plain, tokenizer, capsys):
    options = {"max_new_tokens": 6, "do_sample": False}
    ours, theirs = (
        pipeline("text_generation", model=m, tokenizer=tokenizer, **options) for m in (spec, plain)
    )
    one = ours(PROMPTS[0])
    assert one == theirs(PROMPTS[0]) == ours(PROMPTS[0])
    assert one[0]["text_generation_text"][0].startswith(PROMPTS[0])
    listed = ours(PROMPTS)
    assert listed == theirs(PROMPTS)
    batched = ours(PROMPTS, batch_size=2)
    assert batched[0]["text_generation_text"] == [each["text_generation_text"][0] for each in listed]
    prompt = f"Hi{tokenizer.pad_token}"  # the padding token, written by the user
    ids = [tokenizer(each)["input_ids"] for each in (prompt, PROMPTS[0])]
    alone = [tokenizer.decode(plain.generate(each, **options)[0], skip_special_tokens=True) for each in ids]
    assert ours([prompt, PROMPTS[0]], batch_size=2)[0]["text_generation_text"] == alone
    assert [len(p) for p in ids] == [completion.prompt_tokens for completion in spec.completions]
    assert ours(prompt)[0]["text_generation_text"] == alone[:1]
    ours(PROMPTS[0], streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.strip() == one[0]["text_generation_text"][0].strip()


def test_save_and_reload(native, spec, tokenizer, ids, tmp_path):
    there = tmp_path / "first"
    spec.save_pretrained(str(there))
    spec.save_pretrained(str(there))  # over itself
    moved = there.rename(tmp_path / "moved")
    assert isinstance(AutoConfig.from_pretrained(str(moved)), EagleConfig)
    reloaded = AutoModelForCausalLM.from_pretrained(str(moved))
    assert reloaded.engine.directory == moved / "teacher"
    assert reloaded.generation_config.to_dict() == spec.generation_config.to_dict()
    expected = spec.generate(ids)
    assert same(reloaded.generate(ids), expected)
    assert reloaded.completions[0].drafter == "eagle3"
    for given in ({"tokenizer": tokenizer}, {}):  # without one the directory's own is found
        named = pipeline("text_generation", model=str(moved), mode=0, device_target="CPU", **given)
        assert named("Hello world")[0]["text_generation_text"] == tokenizer.batch_decode(
            expected, skip_special_tokens=True
        )
    with pytest.raises(UserError, match="holds the teacher itself"):
        reloaded.save_pretrained(str(moved / "teacher"))
    with pytest.raises(UserError, match="found ''"):
        reloaded.save_pretrained("")
    its_own = AutoTokenizer.from_pretrained(moved)  # the teacher's names no class
    assert type(its_own) is type(tokenizer)
    assert its_own(PROMPTS)["input_ids"] == tokenizer(PROMPTS)["input_ids"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[]", "config.json holds a JSON list"),
        ("generation_config.json", "{", "generation_config.json:1: not valid JSON"),
        ("generation_config.json", '{"num_beams": "4"}', "MindFormers cannot take it"),
    ],
)
def test_a_broken_file_is_named(paths, tmp_path, name, content, message):
    broken = shutil.copytree(paths[0], tmp_path / "model")
    (broken / name).write_text(content)
    with pytest.raises(UserError, match=message):
        EagleForCausalLM.from_pretrained(str(broken), seq_length=LENGTH)


YAML = """
seed: 0
output_dir: '{work}'
load_checkpoint: '{model}'
use_parallel: False
run_mode: 'predict'
use_legacy: False
load_ckpt_format: 'safetensors'
trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'eagle3'
parallel_config:
  data_parallel: 1
  model_parallel: 1
pretrained_model_dir: '{model}'
model:
  model_config:
    model_type: "eagle3"
    auto_register: eagle_mindformers.EagleConfig
    seq_length: 96
    eagle: {eagle}
context:
  mode: 0
  device_target: "CPU"
parallel:
  parallel_mode: "MANUAL_PARALLEL"
"""


def test_trainer_predicts_from_a_yaml(native, paths, plain, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGISTER_PATH", str(DIRECTORY))
    text = YAML.format(work=tmp_path, model=paths[0], eagle=json.dumps(eagle_sections(paths[1])))
    (tmp_path / "predict.yaml").write_text(text)
    config = MindFormerConfig(str(tmp_path / "predict.yaml"))
    build_context(config)
    build_parallel_config(config)
    trainer = Trainer(args=config)
    found = trainer.predict(input_data=PROMPTS)
    expected = [plain.generate(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    texts = [tokenizer.batch_decode(each, skip_special_tokens=True) for each in expected]
    assert [each["text_generation_text"] for each in found] == texts
    assert trainer.predict(input_data=PROMPTS) == found


def test_infer_through_the_pipeline(native, paths):
    dialogs = [Dialog(("Hello", "More"), "a"), Dialog(("Hi",), "b", "second")]
    drafting = ["tree.budget=4", "tree.depth=2", "tree.branch=2", "generation.max_new_tokens=6"]
    heard = []
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    for kind, head in ((Session, None), (PipelineSession, paths[1])):
        progress = Progress(quiet=kind is Session, console=terminal)
        session = kind.load(tiny_eagle.config(paths[0], head, drafting), False, progress)
        heard.append(Recorder())
        for dialog in dialogs:
            assert session.answer([dialog], heard[-1])
    assert all(wait in terminal.file.getvalue() for wait in ("loading weights", "compiling"))
    ours, theirs = heard
    assert {completion.drafter for completion in theirs.completions} == {"eagle3"}
    assert theirs.begun == ours.begun
    assert [c.token_ids for c in theirs.completions] == [c.token_ids for c in ours.completions]
    assert [c.text for c in theirs.completions] == [c.text for c in ours.completions]
    assert theirs.pieces == [c.text for c in ours.completions]
    with pytest.raises(UserError, match="answers single prompts"):
        session.conversation()
    with pytest.raises(UserError, match=r"generation\.min_p is 0\.5"):
        PipelineSession.load(tiny_eagle.config(*paths, ["generation.min_p=0.5"]), False, Progress(quiet=True))


def test_weights_of_another_directory(paths, tmp_path):
    model = EagleForCausalLM(EagleConfig(str(paths[0]), LENGTH, eagle={"execution": EXECUTION}))
    engine = model.engine
    model.load_weights(str(paths[0]))
    assert model.engine is engine
    other = tiny_eagle.model_dir("qwen2", tmp_path)
    model.load_weights(str(other))
    assert model.engine.directory == other
    with pytest.raises(UserError, match="expected the path"):
        model.load_weights()
    with pytest.raises(UserError, match="does not exist"):
        model.load_weights(str(tmp_path / "nowhere"))
    assert model.config.teacher == str(other)


def test_the_engines_own_configuration_comes_back(paths):
    ours = tiny_eagle.config(*paths, ["execution.batch_size=2"])
    theirs = EagleConfig.from_engine_config(ours).engine_config()
    assert theirs == ours.model_copy(update={"generation": theirs.generation})
