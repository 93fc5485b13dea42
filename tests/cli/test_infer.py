"""tools/infer.py as a process: its refusals, its outputs, a terminal chat and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys

import pytest
from support.commands import TOOL, command, environment, infer, refusal
from support.sessions import save_model, write_config
from support.terminal import Terminal

NAME = {"question_id": int, "category": type(None), "turn": int}
FIELDS = {
    "text": str,
    "token_ids": list,
    "prompt_tokens": int,
    "new_tokens": int,
    "finish_reason": str,
    "drafter": str,
    "kernels": str,
    "mode": str,
    "cycles": int,
    "accept_L": type(None),
    "tokens_per_second": float,
    "seconds": dict,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A configuration of a tiny model that never ends by itself."""
    root = tmp_path_factory.mktemp("infer")
    directory = save_model(root / "model", max_position_embeddings=65536)
    return write_config(root / "c.yaml", directory, max_new_tokens=5, ignore_eos="true")


# What is refused before MindSpore is imported.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "--prompt: the prompt is empty"),
        (["--prompt", "a", "--prompt", " \n"], "--prompt: the prompt is empty"),
        (["--prompt", b"\xff"], "--prompt: the prompt holds half a surrogate pair"),
        ([], "standard input: the prompt is empty"),
        (["--config", "none.yaml"], "none.yaml: No such file or directory"),
        (["--prompts", "none.jsonl"], "none.jsonl: No such file or directory"),
        (["--set", "generation.max_new_tokens=-1"], "--set: generation.max_new_tokens is -1; expected"),
        (["--set", "generation.temperature=-1"], "--set: generation.temperature is -1; expected"),
        (
            ["--set", "generation.tempreature=1"],
            "--set: unknown key generation.tempreature (nearest valid key: ",
        ),
        (
            ["--prompt", "a", "--chat"],
            "argument --chat: not allowed with argument --prompt; see infer.py --help",
        ),
        (
            ["--drafter", " ", "--prompt", "a"],
            "--drafter is empty; expected none, eagle3, ngram, synthetic or",
        ),
        (["--drafter", "eagel3", "--prompt", "a"], "--drafter eagel3: there is no such kind and no such"),
        (
            ["--drafter", "heads/none", "--prompt", "a"],
            "drafter.source: the head 'heads/none' does not exist",
        ),
        (["--set", "gen=1"], "--set: unknown key gen; did you mean the section generation?"),
        (["--max-tokens", "3"], "unrecognized arguments: --max-tokens; see infer.py --help"),
        (["--max-new-tokens", "-3"], "--set: generation.max_new_tokens is -3; expected a whole number"),
        (["--temperature", "hot"], "--set: generation.temperature is the text 'hot'; expected a number"),
        (["--seed", "-1", "hello"], "--set: generation.seed is -1; expected"),
        (["hello", "--prompt", "a"], "'hello' does not go with --prompt"),
        (["hello", "--chat"], "'hello' does not go with --chat"),
        (["hello", "--prompts", "a"], "'hello' does not go with --prompts"),
        (["/dev/null"], "/dev/null is a file, not a prompt: use --prompts /dev/null"),
        ([" "], "--prompt: the prompt is empty"),
        (["--prompts", "-"], "standard input: holds no prompts"),
        (["--set", f"generation.stop={'[' * 5000}"], "--set generation.stop:1: nested more than 16 levels"),
        (["--raw", "--chat"], "--raw continues single prompts"),
        (["--engine", "mindformers", "--chat"], "--engine mindformers answers single prompts"),
    ],
)
def test_refused_arguments(here, arguments, message):
    line = refusal(here, *[a if isinstance(a, str) else os.fsdecode(a) for a in arguments])
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.yaml", b"model:\n  sorce: x\n", ":2: unknown key model.sorce (nearest valid key: model.source)"),
        ("c.yaml", b"model: [x\n", ":2: not valid YAML"),
        ("p.jsonl", b'{"turns": ["a"]}\n{"turns": ["a"\n', ":2: not valid JSON"),
        (
            "p.jsonl",
            b'{"turns": ["a"]}\n\n{"turns": ["\xff"]}\n',
            ":3: byte 13 of the line, 0xff, is not UTF-8",
        ),
        ("p.jsonl", b'{"turns": [""]}\n', ":1: turn 1 is empty"),
        ("p.jsonl", b"", ": holds no prompts"),
    ],
)
def test_refused_files(here, tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    line = refusal(here, "--config" if name == "c.yaml" else "--prompts", path)
    assert line.startswith(f"{path}{message}")


def test_a_trace_replaces_nothing_that_the_run_reads(here, tmp_path):
    prompts, config = tmp_path / "p.jsonl", tmp_path / "c.yaml"
    prompts.write_text('{"turns": ["a"]}\n')
    config.write_text(f"model: {{source: {tmp_path / 'none'}}}\nexecution: {{mode: reference}}\n")
    run = ("--config", config, "--prompts", prompts, "--trace")
    before = prompts.read_text(), config.read_text()
    for path, message in (
        (prompts, "is read by this run"),
        (config, "is read by this run"),
        (tmp_path / "new" / "t.jsonl", "there is no directory"),
    ):
        line = refusal(here, *run, path)
        assert line.startswith("execution.trace: ")
        assert message in line
    assert (prompts.read_text(), config.read_text()) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.yaml", "here", "p.jsonl"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none", "the model source 'none' does not exist"),
        ("hf:x", "hf:x is not of the form hf:org/name"),
        ("pypi:x", "model source pypi:x is not of the form pypi:name==version"),
        ("ftp:x", "the model source 'ftp:x' has an unknown scheme"),
    ],
)
@pytest.mark.parametrize("prompt", [(), ("--prompt", ""), ("--prompts", "none.jsonl")])
def test_a_missing_model_comes_before_a_missing_prompt(here, source, message, prompt):
    assert refusal(here, "--set", f"model.source={source}", *prompt).startswith(message)


def test_refused_standard_input(here):
    assert refusal(here, stdin=b"one\ntwo \xe9\n").startswith("standard input:2: byte 0xe9 is not UTF-8")


def test_help(here):
    status, out, err = infer(here, "--help")
    assert (status, err) == (0, "")
    for word in (
        "examples:",
        "exit status:",
        "--prompts",
        "--set",
        "docs/config.md",
        "/reset",
        *NAME,
        *FIELDS,
    ):
        assert word in out


def test_help_and_refusals_do_not_import_mindspore(here):
    probe = "import sys; sys.path.insert(0, sys.argv.pop(1)); import infer\ntry: infer.main(sys.argv[1:])\n"
    probe += "except (SystemExit, infer.UserError): print('mindspore' in sys.modules)"
    for arguments in (["--help"], ["--prompt", ""], ["--prompts", "none.jsonl"]):
        done = subprocess.run(
            [sys.executable, "-c", probe, str(TOOL.parent), *arguments],
            capture_output=True,
            text=True,
            cwd=here,
        )
        assert done.stdout.endswith("False\n")


# What needs the model.


def test_json_has_exactly_the_fields_for_every_turn(here, model, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"question_id": 1, "turns": ["The fox", "and?"]}\n{"turns": ["你好 🙂"]}\n')
    status, out, err = infer(here, "--config", model, "--prompts", prompts, "--json")
    assert status == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 3
    for found in records:
        assert {name: type(value) for name, value in found.items()} == {**NAME, **FIELDS}
        assert list(found) == [*NAME, *FIELDS]
        assert list(found["seconds"]) == ["load", "compile", "prefill", "decode"]
        assert all(value >= 0 for value in found["seconds"].values())
        assert found["new_tokens"] == len(found["token_ids"]) == 5
        assert (found["finish_reason"], found["drafter"], found["mode"]) == ("length", "none", "performance")
    assert [(r["question_id"], r["turn"]) for r in records] == [(1, 1), (1, 2), (2, 1)]
    assert records[1]["prompt_tokens"] > records[0]["prompt_tokens"]
    lines = err.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("[5 tokens (length) | ")
        assert "tokens/s | first token 0." in line


def test_text_and_no_tokens(here, model):
    status, out, err = infer(
        here,
        *("--config", model, "--raw", "--max-new-tokens", 0, "--temperature", 0.7, "--seed", 3),
        *("--set", "drafter.kind=synthetic", "--drafter", "none"),
        stdin=b"The fox\n",
    )
    assert (status, out) == (0, "\n")
    assert err.startswith("[0 tokens (length) | - tokens/s | first token - | prompt ")
    assert err.count("\n") == 1


def test_a_prompt_longer_than_the_capacity(here, model):
    line = refusal(here, "--config", model, "--prompt", "word " * 200)
    assert line.startswith("--prompt: the prompt has ")
    assert "model.max_length" in line


LONG = ("--set", "model.max_length=4000", "--set", "generation.max_new_tokens=3900")


def test_ctrl_c_keeps_what_was_written(here, model):
    running = subprocess.Popen(
        command("--config", model, "--prompt", "The fox", *LONG),
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    first = running.stdout.read(1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert len(first + out) > 1
    assert b"(interrupted) | " in err
    assert err.count(b"\n") == 1
    assert list(here.iterdir()) == []


def test_a_chat_on_a_terminal(here, model):
    """Without arguments a terminal gets a chat; Ctrl-C stops an answer, not the chat."""
    chat = Terminal(command("--config", model, *LONG), here)
    try:
        shown = chat.wait_for(">>> ")
        assert "/reset forgets the conversation" in shown
        assert "WARNING" not in shown
        chat.send("The fox\n")
        chat.wait_for("The fox\r\n")
        chat.wait_for_answer()
        os.kill(chat.process.pid, signal.SIGINT)
        chat.wait_for("(interrupted) | ")
        chat.wait_for(">>> ")
        chat.send("/reset\n")
        chat.wait_for("the conversation is forgotten")
        chat.wait_for(">>> ")
        chat.send("\x04")
        assert chat.process.wait(timeout=60) == 0
    finally:
        chat.process.kill()
        os.close(chat.master)
    assert list(here.iterdir()) == []
