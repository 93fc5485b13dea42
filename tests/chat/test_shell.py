"""Commands, mistakes and Ctrl-C of the chat, with a conversation that answers from a script."""

import io
from dataclasses import replace

import pytest
from support.completions import PLAIN

from ms_eagle.chat.keyboard import typed_text
from ms_eagle.chat.report import TextReport
from ms_eagle.chat.shell import COMMANDS, ChatShell
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams


class Scripted:
    """Answers ``you said X``; "bad" is refused, "cut" is interrupted."""

    turns = 0

    def __init__(self):
        self.heard = []

    def say(self, text, options, on_text):
        self.heard.append(text)
        if text == "bad":
            raise UserError("too long")
        on_text(f"you said {text}")
        return replace(PLAIN, finish_reason="interrupted" if text == "cut" else "stop")

    def retry(self, options, on_text):
        return self.say(f"{self.last_message} again with seed {options.sampling.seed}", options, on_text)

    @property
    def last_message(self):
        if not self.heard:
            raise UserError("nothing has been answered yet")
        return self.heard[0]

    def reset(self):
        self.heard.append("RESET")

    def save(self, path):
        self.heard.append(f"SAVE {path}")


class Settings:
    chat_options = GenerationOptions(sampling=SamplingParams(temperature=0.5, seed=2**64 - 2))

    def change(self, override, name):
        if override == "nonsense":
            raise UserError(f"{name} nonsense: expected section.key=value")
        self.chat_options = GenerationOptions()


class Input(io.TextIOWrapper):
    """Standard input that may claim to be a terminal, and turns a line ``^C`` into Ctrl-C."""

    def __init__(self, data, terminal):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def readline(self, *arguments):
        line = super().readline(*arguments)
        if line == "^C\n":
            raise KeyboardInterrupt
        return line


@pytest.fixture
def chat(monkeypatch, capsys):
    def run(data, terminal):
        monkeypatch.setattr("sys.stdin", Input(data, terminal))
        conversation = Scripted()
        finished = ChatShell(conversation, Settings(), TextReport()).run()
        out, err = capsys.readouterr()
        return finished, conversation.heard, out, err

    return run


def test_a_piped_chat_answers_line_by_line_without_prompts(chat):
    finished, heard, out, err = chat(b"hello\n\n  you \n", terminal=False)
    assert finished
    assert heard == ["hello", "you"]
    assert out == "you said hello\nyou said you\n"
    assert ">>>" not in out + err


def test_marks_and_line_ends_of_windows_are_dropped(chat):
    finished, heard, _, _ = chat(b"\xef\xbb\xbfhello\r\n\xef\xbb\xbf/exit\r\nnever\r\n", terminal=False)
    assert finished
    assert heard == ["hello"]


def test_commands(chat):
    finished, heard, _, err = chat(b"one\n/reset\n/helo\n/help\n/etc/passwd?\n/exit\nnever\n", terminal=False)
    assert finished
    assert heard == ["one", "RESET", "/etc/passwd?"]
    assert "the conversation is forgotten" in err
    assert "unknown command /helo; /reset forgets" in err


def test_retries_take_the_next_seeds_until_a_new_message(chat):
    lines = b"one\n/retry\n/retry\ntwo\n/retry\n/set generation.temperature=0\n/retry\n"
    _, heard, _, err = chat(lines, terminal=False)
    seeds = [int(each.rpartition(" ")[2]) for each in heard if "again" in each]
    assert seeds == [2**64 - 1, 0, 2**64 - 1, 2]
    assert err.count("the answer will be the same") == 1


def test_commands_with_and_without_something_behind_them(chat):
    lines = ["/retry", "/set", "/set nonsense", "/reset now", "/save  a b.json", "/sav x", "/tmp is full"]
    _, heard, _, err = chat("\n".join([*lines, "/help", ""]).encode(), terminal=True)
    assert heard == ["SAVE a b.json", "/tmp is full"]
    for told in (
        "error: nothing has been answered yet",
        "error: /set: expected /set KEY=VALUE, which changes",
        "error: /set nonsense: expected section.key=value",
        "error: /reset now: expected /reset, which forgets",
        "unknown command /sav; /reset forgets",
        *(f"  {usage} " for usage in COMMANDS),
    ):
        assert told in err


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one\n\n", "one"),
        ("ab\x7f\x7f\x7fc\x1b[A\x1bOB\x1b[3~d\x04", "cd"),
        ("\x1b[200~one\r\ttwo\x1b[201~", "one\n\ttwo"),
        ("你好\x1b", "你好"),
    ],
)
def test_what_is_left_of_keys_pressed_during_an_answer(keys, text):
    assert typed_text(keys) == text


def test_a_mistake_ends_a_pipe_and_not_a_terminal(chat):
    with pytest.raises(UserError, match=r"too long.* \(/reset starts anew\)$"):
        chat(b"bad\nnext\n", terminal=False)
    finished, heard, _, err = chat(b"bad\nnext\n", terminal=True)
    assert finished
    assert heard == ["bad", "next"]
    assert "error: too long (/reset starts anew)" in err


def test_bytes_that_are_not_utf8(chat):
    with pytest.raises(UserError, match="not UTF-8"):
        chat(b"fine\n\xff\xfe\n", terminal=False)


def test_an_interrupted_answer_ends_a_pipe_and_not_a_terminal(chat):
    finished, heard, _, _ = chat(b"cut\nnext\n", terminal=False)
    assert (finished, heard) == (False, ["cut"])
    finished, heard, _, err = chat(b"cut\nnext\n", terminal=True)
    assert (finished, heard) == (True, ["cut", "next"])
    assert "(interrupted)" in err


def test_ctrl_c_at_the_prompt_leaves_the_second_time(chat):
    finished, heard, _, err = chat(b"^C\none\n^C\n^C\nnever\n", terminal=True)
    assert (finished, heard) == (True, ["one"])
    assert err.count("Ctrl-C again") == 2
    assert chat(b"^C\nnever\n", terminal=False)[:2] == (False, [])


def test_a_terminal_is_prompted_on_standard_error_when_output_is_a_pipe(chat):
    _, _, out, err = chat(b"one\n", terminal=True)
    assert out == "you said one\n"
    assert err.count(">>> ") == 2
