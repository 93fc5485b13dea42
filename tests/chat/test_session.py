"""Dialogs over a real tiny model: the same answers alone, in a batch, turn by turn."""

import pytest
from support.sessions import Recorder, save_model, write_config
from support.tiny_engine import CharacterTokenizer

from ms_eagle.chat.session import Dialog, Session, endings, generation_options
from ms_eagle.config.sections import load_config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress


@pytest.fixture(scope="module")
def config_path(tmp_path_factory):
    root = tmp_path_factory.mktemp("session")
    return write_config(root / "c.yaml", save_model(root / "model"), max_new_tokens=6, ignore_eos="true")


def load(path, *overrides):
    return Session.load(load_config(path, list(overrides)), raw=False, progress=Progress(quiet=True))


@pytest.fixture(scope="module")
def session(config_path):
    return load(config_path)


@pytest.fixture(scope="module")
def pair(config_path):
    return load(config_path, "execution.batch_size=2")


DIALOGS = [
    Dialog(("The quick fox", "and the dog?"), "p:1", "one"),
    Dialog(("你好",), "p:2", "two"),
    Dialog(("Prices", "rose", "in 2024"), "p:3", "three"),
]


def test_generation_options_carry_every_value(config_path):
    options = generation_options(
        load_config(
            config_path,
            [
                "generation.temperature=0.5",
                "generation.top_k=3",
                "generation.top_p=0.9",
                "generation.min_p=0.1",
            ]
            + ["generation.repetition_penalty=1.5", "generation.seed=7", "generation.stop=[a, b]"],
        ),
        CharacterTokenizer(),
    )
    sampling = options.sampling
    assert (options.max_new_tokens, options.stop, options.ignore_eos) == (6, ("a", "b"), True)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.9, 0.1)
    assert (sampling.repetition_penalty, sampling.seed) == (1.5, 7)


def test_stop_tokens_end_answers_with_the_models_own_and_without(config_path):
    tokenizer = CharacterTokenizer()
    for ignore, ids in ((False, (2, 65)), (True, (65,))):
        overrides = ["generation.stop_tokens=[65, 65]", f"generation.ignore_eos={str(ignore).lower()}"]
        options = generation_options(load_config(config_path, overrides), tokenizer)
        assert (options.eos_ids, options.ignore_eos) == (ids, False)
    assert endings(options, tokenizer) == "tokens that end an answer: 65 'A' (generation.stop_tokens)"
    assert endings(GenerationOptions(ignore_eos=True), tokenizer) == "tokens that end an answer: none"
    with pytest.raises(UserError, match=r"generation\.stop_tokens holds 96"):
        generation_options(load_config(config_path, ["generation.stop_tokens=[96]"]), tokenizer)


def test_dialogs_are_told_in_order_and_streamed_text_is_the_answer(session):
    report = Recorder()
    assert session.answer(DIALOGS, report)
    assert report.begun == [
        ("one, turn 1", "The quick fox"),
        ("one, turn 2", "and the dog?"),
        ("two, turn 1", "你好"),
        ("three, turn 1", "Prices"),
        ("three, turn 2", "rose"),
        ("three, turn 3", "in 2024"),
    ]
    assert report.pieces == [completion.text for completion in report.completions]
    assert all(completion.new_tokens == 6 for completion in report.completions)


def test_asking_and_streaming_from_python(config_path, session):
    opened = Session.open(config_path, "generation.max_new_tokens=6")
    report = Recorder()
    session.answer([Dialog(("The quick fox",), "p")], report)
    (completion,) = report.completions
    assert opened.ask("The quick fox").token_ids == completion.token_ids
    assert "".join(opened.stream("The quick fox")) == completion.text
    pieces = opened.stream("The quick fox")
    next(pieces)
    pieces.close()  # whoever stops listening ends the answer
    assert not opened.engine.busy
    assert opened.ask("The quick fox").text == completion.text
    with pytest.raises(UserError, match=r"generation\.max_new_token"):
        Session.open(config_path, "generation.max_new_token=6")


def test_turns_continue_the_conversation(session):
    report = Recorder()
    session.answer(DIALOGS[:1], report)
    conversation = session.conversation()
    said = [conversation.say(turn, session.options) for turn in DIALOGS[0].turns]
    assert [c.token_ids for c in report.completions] == [c.token_ids for c in said]
    assert [c.prompt_tokens for c in report.completions] == [c.prompt_tokens for c in said]
    assert report.completions[1].reused_tokens > 0


def test_a_batch_gives_the_same_answers_in_the_same_order(session, pair):
    alone, together = Recorder(), Recorder()
    session.answer(DIALOGS, alone)
    assert pair.answer(DIALOGS, together)
    assert together.begun == alone.begun
    assert [c.token_ids for c in together.completions] == [c.token_ids for c in alone.completions]
    assert together.pieces == alone.pieces


def test_system_prompt_reaches_the_model(config_path):
    session = load(config_path, "model.system_prompt=The dog looks up.", "generation.max_new_tokens=0")
    plain = load(config_path, "generation.max_new_tokens=0")
    with_system, without = Recorder(), Recorder()
    session.answer(DIALOGS[1:2], with_system)
    plain.answer(DIALOGS[1:2], without)
    added = session.engine.tokenizer.encode("<|im_start|>system\nThe dog looks up.<|im_end|>")
    grown = with_system.completions[0].prompt_tokens - without.completions[0].prompt_tokens
    assert grown == len(added) - 1  # the beginning-of-text token is there once


def test_no_new_tokens_is_an_empty_answer_and_compiles_nothing(config_path):
    session = load(config_path, "generation.max_new_tokens=0")
    report = Recorder()
    assert session.answer(DIALOGS[:1], report)
    assert [(c.text, c.token_ids, c.finish_reason) for c in report.completions] == [("", (), "length")] * 2
    assert session.engine.compile_seconds == 0


def test_raw_prompts_go_in_as_they_are(session, config_path):
    raw = Session(session.engine, None, load_config(config_path), Progress(quiet=True))
    report = Recorder()
    raw.answer([Dialog(("The quick",), "--prompt")], report)
    assert report.begun == [(None, "The quick")]
    assert report.completions[0].prompt_tokens == len(session.engine.tokenizer.encode("The quick"))
    with pytest.raises(UserError, match="--raw"):
        raw.conversation()


def test_a_prompt_that_does_not_fit_is_named(session):
    report = Recorder()
    dialogs = [DIALOGS[1], Dialog(("fine", "long " * 200), "p.jsonl:7", "x")]
    with pytest.raises(UserError, match=r"^p\.jsonl:7, turn 2: the prompt has \d+ tokens"):
        session.answer(dialogs, report)
    assert len(report.completions) == 2


@pytest.mark.parametrize("batch", [1, 2])
def test_a_dialog_that_overflows_ends_itself_only(session, pair, batch):
    session = session if batch == 1 else pair
    plain, report, long = Recorder(), Recorder(), "long " * 200
    assert session.answer(DIALOGS, plain)
    dialogs = [
        Dialog((long, "never"), "p:0"),
        DIALOGS[0],
        Dialog(("fine", long, "never"), "p:9"),
        *DIALOGS[1:],
    ]
    with pytest.raises(UserError, match=r"^p:0, turn 1: .* \(and 1 more dialogs, see above\)$"):
        session.answer(dialogs, report)
    fine = report.begun.index((None, "fine"))
    del report.begun[fine], report.completions[fine]
    assert report.begun == plain.begun
    assert [c.token_ids for c in report.completions] == [c.token_ids for c in plain.completions]


@pytest.mark.parametrize("batch", [1, 2])
def test_ctrl_c_ends_with_what_there_is(session, pair, batch):
    session = session if batch == 1 else pair
    engine = session.engine
    cycle, calls = engine.graphs.cycle, []

    def interrupted(tier, sampled):
        calls.append(sampled)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return cycle(tier, sampled)

    engine.graphs.cycle = interrupted
    try:
        report = Recorder()
        assert not session.answer(DIALOGS, report)
    finally:
        engine.graphs.cycle = cycle
    assert [c.finish_reason for c in report.completions] == ["interrupted"] * batch
    assert [c.new_tokens for c in report.completions] == [2] * batch


def test_special_tokens_in_text_stay_text_where_asked(session, config_path):
    engine, quiet = session.engine, Progress(quiet=True)
    config = load_config(config_path, ["generation.special_tokens_in_text=text"])
    text, control = Session(engine, session.template, config, quiet), session
    message = [{"role": "user", "content": "the<|im_end|>"}]
    end = engine.tokenizer.atoms["<|im_end|>"]
    assert (control.encode(message).count(end), text.encode(message).count(end)) == (2, 1)
    reports = Recorder(), Recorder()
    for asked, report in zip((load_config(config_path), config), reports, strict=True):
        Session(engine, None, asked, quiet).answer([Dialog(("the<|im_end|>",), "--prompt")], report)
    raw = [report.completions[0].prompt_tokens for report in reports]
    assert raw[1] > raw[0]
