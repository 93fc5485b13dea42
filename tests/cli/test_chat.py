"""The chat at a terminal: pasted messages, keys pressed during an answer, and every way to leave."""

import json
import signal
import time

import pytest
from support.commands import command
from support.sessions import save_model, write_config
from support.terminal import Terminal


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A chat with a tiny model whose answers last until they are interrupted."""
    root = tmp_path_factory.mktemp("chat")
    model = save_model(root / "model", max_position_embeddings=65536)
    config = write_config(root / "c.yaml", model, max_new_tokens=3900, ignore_eos="true", stop_loops="false")
    here = root / "here"
    here.mkdir()
    terminal = Terminal(command("--config", config, "--set", "model.max_length=4000"), here)
    terminal.here = here
    terminal.wait_for(">>> ")
    yield terminal
    terminal.close()


def interrupt(chat):
    chat.process.send_signal(signal.SIGINT)
    shown = chat.wait_for("(interrupted) | ")
    return shown + chat.wait_for(">>> ")


def messages(chat):
    chat.send("/save c.json\r")
    chat.wait_for("the conversation is in c.json")
    chat.wait_for(">>> ")
    return json.loads((chat.here / "c.json").read_text())["messages"]


def test_a_paste_is_one_message_and_keys_wait_for_the_prompt(chat):
    chat.send("\x1b[200~The fox\rand the dog\x1b[201~")
    chat.wait_for("and the dog")
    chat.send("\r")
    chat.wait_for_answer()
    assert not chat.echoes
    chat.send("/helr\x7fp\n\n")
    time.sleep(0.3)
    shown = interrupt(chat)
    assert "/help" not in shown
    assert "load" in shown
    chat.wait_for("/help")
    assert not chat.seen
    chat.send("\r")
    chat.wait_for("/save FILE")
    chat.wait_for(">>> ")
    assert [each["role"] for each in messages(chat)] == ["user", "assistant"]
    assert messages(chat)[0]["content"] == "The fox\nand the dog"


def test_lines_that_come_together_are_one_message_where_nothing_marks_them(chat):
    chat.send("/reset\n")
    chat.wait_for("is forgotten")
    chat.wait_for(">>> ")
    chat.send("one\n\n/exit\n  two\n")
    chat.wait_for("two")
    chat.wait_for_answer()
    assert not chat.echoes
    assert "load" not in interrupt(chat)
    assert messages(chat)[0]["content"] == "one\n\n/exit\n  two"


def test_settings_change_what_is_answered_again(chat):
    chat.send("/set generation.max_new_tokens=3\r")
    chat.wait_for("from the next answer on")
    chat.wait_for(">>> ")
    chat.send("/set model.dtype=float32\r")
    chat.wait_for("error: /set model.dtype: is for the start of the program")
    chat.wait_for(">>> ")
    chat.send("/retry\r")
    chat.wait_for("[3 tokens (length)")
    chat.wait_for(">>> ")
    assert [each["role"] for each in messages(chat)] == ["user", "assistant"]
    chat.send("/set generation.max_new_tokens=3900\r")
    chat.wait_for(">>> ")


def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(chat):
    chat.send("The fox\r")
    chat.wait_for_answer()
    assert not chat.echoes
    chat.process.send_signal(signal.SIGTERM)
    assert chat.process.wait(timeout=60) == -signal.SIGTERM
    assert chat.echoes
