"""Prompt files: what is read, and the file and line of what is wrong."""

import json

import pytest

from ms_eagle.errors import UserError
from ms_eagle.text.prompts import Prompt, read_prompts


@pytest.fixture
def write(tmp_path):
    def to_file(data):
        path = tmp_path / "p.jsonl"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return to_file


def test_reads_mt_bench_lines(write):
    path = write(
        '{"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x"]}\n'
        "\n"
        '{"question_id": "q2", "turns": ["\\u4f60\\u597d 😀"]}\r\n'
        "   \n"
        '{"turns": ["no id"]}'
    )
    assert read_prompts(path) == [
        Prompt(81, "writing", ("a", "b"), 1),
        Prompt("q2", None, ("你好 😀",), 3),
        Prompt(5, None, ("no id",), 5),
    ]


def test_files_of_windows_that_were_put_together(write):
    mark = b"\xef\xbb\xbf"
    path = write(mark + b'{"turns": ["a"]}\r\n' + mark + b"\r\n" + mark + b'{"turns": ["b"]}\r\n')
    assert [prompt.turns for prompt in read_prompts(path)] == [("a",), ("b",)]


def test_ids_that_come_again_are_numbered(write):
    ids = [81, 81, "81", "81-2", 82, 81]
    path = write("\n".join(json.dumps({"question_id": each, "turns": ["a"]}) for each in ids))
    found = [prompt.question_id for prompt in read_prompts(path)]
    assert found == [81, "81-3", "81-4", "81-2", 82, "81-5"]
    path = write('{"question_id": 2, "turns": ["a"]}\n{"turns": ["b"]}')
    assert [prompt.question_id for prompt in read_prompts(path)] == [2, "2-2"]


def test_only_newlines_end_lines(write):
    text = "one\u2028two\x85three\x0bfour"
    path = write(json.dumps({"turns": [text]}, ensure_ascii=False).replace("\\u000b", "\u2028"))
    assert read_prompts(path)[0].turns == ("one\u2028two\x85three\u2028four",)


def test_a_byte_order_mark_is_no_error(write):
    assert read_prompts(write(b'\xef\xbb\xbf{"turns": ["a"]}'))[0].turns == ("a",)


GOOD = '{"turns": ["a"]}\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", ": holds no prompts"),
        ("\n \n", ": holds no prompts"),
        (GOOD + '{"turns": ["a"\n', ":2: not valid JSON: Expecting ',' delimiter at column 15"),
        (GOOD + "\n" + "{'turns': 1}\n", ":3: not valid JSON"),
        (GOOD + "[" * 100_000, ":2: not valid JSON: nested too deeply"),
        (GOOD + '{"n": ' + "1" * 5000 + "}", ":2: not valid JSON: nested too deeply, or a number too long"),
        (GOOD.encode() + b'{"turns": ["\xff"]}', ":2: byte 13 of the line, 0xff, is not UTF-8"),
        (GOOD.encode() + b"\xe4\xbd\n", ":2: byte 1 of the line, 0xe4, is not UTF-8"),
        (GOOD + '"a"', ":2: found text; expected an object"),
        (GOOD + "[1]", ":2: found a list; expected an object"),
        (GOOD + '{"question_id": 1}', ':2: "turns" is missing; expected'),
        (
            GOOD + '{"question_id": 1, "prompt": "a", "turn\\u00e9": 1}',
            ':2: "turns" is missing (found "prompt", "turn\\u00e9"); expected',
        ),
        (GOOD + '{"turns": []}', ':2: "turns" is an empty list; expected a list with at least one message'),
        (GOOD + '{"turns": "a"}', ':2: "turns" is text; expected a list'),
        (GOOD + '{"turns": null}', ':2: "turns" is null; expected a list'),
        (GOOD + '{"turns": ["a", 2]}', ":2: turn 2 is a number; expected text"),
        (GOOD + '{"turns": ["a", ""]}', ":2: turn 2 is empty; expected some text"),
        (GOOD + '{"turns": [" \\n"]}', ":2: turn 1 is empty; expected some text"),
        (GOOD + '{"turns": ["\\ud83d"]}', ":2: turn 1 holds half a surrogate pair (U+D83D)"),
        (GOOD + '{"turns": ["a"], "question_id": true}', ':2: "question_id" is a boolean'),
        (
            GOOD + '{"turns": ["a"], "question_id": 1.5}',
            ':2: "question_id" is a number; expected a whole number',
        ),
        (GOOD + '{"turns": ["a"], "question_id": null}', ':2: "question_id" is null'),
        (GOOD + '{"turns": ["a"], "category": {}}', ':2: "category" is an object; expected text'),
    ],
)
def test_errors_name_file_and_line(write, data, message):
    path = write(data)
    with pytest.raises(UserError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="Is a directory"):
        read_prompts(tmp_path)
