"""Figures, JSON records, and what goes to which stream."""

import json
from dataclasses import replace

import pytest
from support.completions import PLAIN
from support.sessions import Recorder

from ms_eagle.chat.acceptance import AcceptanceReport
from ms_eagle.chat.report import Asked, JsonReport, TextReport, figures, record


def test_figures():
    assert figures(PLAIN) == (
        "[3 tokens (stop) | 4.0 tokens/s | first token 0.60 s | prompt 12 | load 1.2 s | compile 3.5 s]"
    )


def test_figures_without_tokens():
    empty = replace(
        PLAIN, token_ids=(), time_to_first_token=None, tokens_per_second=None, finish_reason="length"
    )
    assert figures(empty).startswith("[0 tokens (length) | - tokens/s | first token - | prompt 12 |")


def test_figures_of_speculation_and_reuse():
    line = figures(replace(PLAIN, drafter="eagle3", accept_L=(0, 3, 2), reused_tokens=9, token_ids=(1,)))
    assert "[1 token (stop)" in line
    assert "| accept_L 1.67 (tau 2.67) |" in line
    assert "| prompt 12 (9 reused) |" in line


def test_record_has_exactly_the_documented_fields():
    assert record(PLAIN) == {
        "text": "Guten Tag 🙂",
        "token_ids": [5, 6, 7],
        "prompt_tokens": 12,
        "new_tokens": 3,
        "finish_reason": "stop",
        "drafter": "none",
        "kernels": "eager",
        "mode": "performance",
        "cycles": 3,
        "accept_L": None,
        "tokens_per_second": 4.0,
        "seconds": {"load": 1.25, "compile": 3.5, "prefill": 0.5, "decode": 0.75},
    }
    assert record(replace(PLAIN, accept_L=(0, 2)))["accept_L"] == [0, 2]


@pytest.mark.parametrize(
    ("internal", "told"), [("stop", "stop"), ("length", "length"), ("interrupted", "length")]
)
def test_finish_reason_of_a_record(internal, told):
    assert record(replace(PLAIN, finish_reason=internal))["finish_reason"] == told


def test_text_report_streams_text_and_keeps_figures_apart(capsys):
    report = TextReport()
    report.begin(None, "Hallo", Asked())
    report.text("Guten ")
    assert capsys.readouterr().out == "Guten "
    report.text("Tag 🙂")
    report.end(PLAIN)
    out, err = capsys.readouterr()
    assert out == "Tag 🙂\n"
    assert err == figures(PLAIN) + "\n"


def test_text_report_heads_one_of_several(capsys):
    TextReport().begin("81 (writing), turn 1", "two\n\tlines \x1b[2J", Asked())
    assert capsys.readouterr().out == "--- 81 (writing), turn 1 ---\n> two\n>         lines \\x1b[2J\n"


def test_json_report_is_one_line_an_answer(capsys):
    report = JsonReport()
    for _ in range(2):
        report.begin("1, turn 1", "Hallo", Asked(1, "writing", 2))
        report.text("Guten ")
        report.end(replace(PLAIN, text="a\nb\u2028🙂"))
    out, err = capsys.readouterr()
    lines = out.removesuffix("\n").split("\n")
    assert [json.loads(line)["text"] for line in lines] == ["a\nb\u2028🙂"] * 2
    for line in lines:
        found = json.loads(line)
        assert list(found)[:3] == ["question_id", "category", "turn"]
        assert (found["question_id"], found["category"], found["turn"]) == (1, "writing", 2)
    assert err == f"{figures(PLAIN)}\n" * 2


@pytest.mark.parametrize(
    ("answers", "noted"),
    [
        ([(0,) * 49], False),
        ([(0,) * 30, (0,) * 20, (0,) * 60], True),
        ([(0,) * 20 + (1,), (0,) * 60], False),
        ([None] * 60, False),
    ],
)
def test_a_head_of_which_nothing_is_accepted_is_told_once(capsys, answers, noted):
    report = AcceptanceReport(Recorder())
    for accepted in answers:
        report.begin(None, "Hallo", Asked())
        report.end(replace(PLAIN, drafter="eagle3", accept_L=accepted))
    err = capsys.readouterr().err
    assert err.count("\n") == noted
    assert ("tools/check_head.py" in err) == noted
    report.end(replace(PLAIN, drafter="synthetic", accept_L=(0,) * 99))
    assert capsys.readouterr().err == ""
