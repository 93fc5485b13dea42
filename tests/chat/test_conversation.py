"""Turns that no longer fit, answers anew, files, and settings that change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.sessions import save_model, write_config

from ms_eagle.chat.session import Session
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams

SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("conversation")
    path = write_config(root / "c.yaml", save_model(root / "model"), max_new_tokens=6, ignore_eos="true")
    return Session.open(path, "model.system_prompt=Be brief.")


@pytest.fixture
def notes():
    return []


@pytest.fixture
def conversation(session, notes):
    conversation = session.conversation()
    conversation._note = notes.append
    return conversation


def test_the_oldest_turns_are_left_out_of_a_full_context(session, conversation, notes):
    options, said = session.chat_options, []
    for number in range(12):
        before = list(conversation.messages)
        completion = conversation.say(f"the dog {number}", options)
        said.append(f"the dog {number}")
        assert completion.new_tokens == 6
        assert conversation.messages[0] == SYSTEM
        turns = [each for each in conversation.messages[1:] if each["role"] == "user"]
        assert [each["content"] for each in turns] == said[-len(turns) :]
        assert conversation.messages[-2 * len(turns) : -2] == before[len(before) - 2 * len(turns) + 2 :]
        # What the caches were read on from is what a fresh reading of the same prompt gives.
        prompt = session.encode(conversation.messages[:-1])
        (fresh,) = session.engine.generate([prompt], options)
        assert (fresh.token_ids, fresh.prompt_tokens) == (completion.token_ids, completion.prompt_tokens)
    assert conversation.turns == 12
    assert len(conversation.messages) < 24
    assert notes
    assert notes[0] == "the context of 128 tokens is full: the oldest turn is left out from here on"


def test_a_message_too_long_by_itself_changes_nothing(session, conversation, notes):
    conversation.say("the dog", session.chat_options)
    before = conversation.messages
    with pytest.raises(UserError, match=r"the prompt has .* leaves no room for an answer"):
        conversation.say("long " * 200, session.chat_options)
    assert (conversation.messages, conversation.turns, notes) == (before, 1, [])
    assert conversation.say("and now?", session.chat_options).new_tokens == 6


def test_the_last_message_is_answered_anew_in_its_place(session, conversation):
    with pytest.raises(UserError, match="nothing has been answered yet"):
        conversation.retry(session.chat_options)
    sampled = replace(session.chat_options, sampling=SamplingParams(temperature=1.0, seed=1))
    conversation.say("the fox", sampled)
    first = conversation.say("the dog", sampled)
    other = conversation.retry(replace(sampled, sampling=SamplingParams(temperature=1.0, seed=2)))
    assert other.token_ids != first.token_ids
    assert conversation.messages[-1]["content"] == other.text
    assert conversation.retry(sampled).token_ids == first.token_ids
    assert (conversation.turns, len(conversation.messages)) == (2, 5)
    before = conversation.messages

    def broken(messages):
        raise UserError("no")

    conversation._encode = broken
    with pytest.raises(UserError, match="no"):
        conversation.retry(sampled)
    assert (conversation.messages, conversation.turns) == (before, 2)


def test_a_saved_conversation_is_read_back(session, conversation, tmp_path):
    path = tmp_path / "c.json"
    conversation.save(path)
    conversation.say("你好 the dog", session.chat_options)
    conversation.save(path)
    assert json.loads(path.read_text()) == {"messages": conversation.messages}
    other = session.conversation()
    other.load(path)
    assert (other.messages, other.turns) == (conversation.messages, 1)
    options = session.chat_options
    assert other.say("and?", options).token_ids == conversation.say("and?", options).token_ids
    other.reset()
    assert other.messages == [SYSTEM]


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"messages": 1}',
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"messages": [{"role": "user", "content": 1}, {"role": "assistant", "content": ""}]}',
        '{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "a"}]}',
        '{"messages": [{"role": ["user"], "content": "a"}, 3]}',
        "notes of mine",
    ],
)
def test_other_files_are_neither_read_nor_replaced(conversation, tmp_path, content):
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(UserError):
        conversation.load(path)
    with pytest.raises(UserError, match=r"^/save: .*notes is there and no conversation: name another file$"):
        conversation.save(path)
    assert path.read_text() == content


def test_places_that_cannot_be_written(conversation, tmp_path):
    for path in (
        tmp_path,
        tmp_path / "no" / "c.json",
        tmp_path / "\0",
        tmp_path / ("n" * 300),
        Path("/dev/full"),
    ):
        with pytest.raises(UserError, match=r"^/save: "):
            conversation.save(path)
    assert list(tmp_path.iterdir()) == []


def test_settings_change_for_the_next_answer(session, conversation):
    before = session.options
    session.change("generation.max_new_tokens=2", "/set")
    assert conversation.say("the dog", session.chat_options).new_tokens == 2
    assert session.chat_options.stop_loops
    assert not session.options.stop_loops
    session.change("generation.stop_loops=false", "/set")
    assert not session.chat_options.stop_loops
    for override, message in (
        ("nonsense", "/set nonsense: expected section.key=value"),
        ("temperature=1", "/set: unknown key temperature (nearest valid key: generation.temperature)"),
        ("generation.top_p=2", "/set: generation.top_p is 2; expected a number above 0 and at most 1"),
        ("generation.stop=[[[", "/set generation.stop:1: not valid YAML"),
        ("generation.stop_tokens=[<|none|>]", "generation.stop_tokens holds '<|none|>'"),
        ("model.max_length=9", "/set model.max_length: is for the start of the program"),
        ("generation=3", "/set generation: is a section"),
    ):
        with pytest.raises(UserError) as error:
            session.change(override, "/set")
        assert str(error.value).startswith(message)
    assert session.options.max_new_tokens == 2
    session.change("generation.max_new_tokens=6", "/set")
    assert session.options == before
