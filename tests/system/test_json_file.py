import os
from pathlib import Path

import pytest

from ms_eagle.errors import UserError
from ms_eagle.system import json_file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, True], "b": {"ü": "北京"}}
    json_file.write_object(tmp_path / "x.json", content)
    assert json_file.read_object(tmp_path / "x.json") == content


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert json_file.read_object(tmp_path / "x.json") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": }', r"x\.json:2: not valid JSON"),
        (b"", r"x\.json:1: not valid JSON"),
        (b"[1]", "holds a JSON list, expected an object"),
        (b'{"a": "\xff"}', r"not UTF-8 \(byte 7\)"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        json_file.read_object(tmp_path / "x.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*x\.json: No such file"):
        json_file.read_object(tmp_path / "x.json")


def test_pipes_and_numbers_without_end_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text('{"a": ' + "9" * 5000 + "}")
    with pytest.raises(UserError, match="it is no plain file"):
        json_file.read_object(tmp_path / "pipe")
    with pytest.raises(UserError, match="a number too long"):
        json_file.read_object(tmp_path / "long")


def test_what_a_file_says_moves_no_cursor(tmp_path):
    (tmp_path / "a\x1b[2J\x07").write_text("[]")
    with pytest.raises(UserError) as raised:
        json_file.read_object(tmp_path / "a\x1b[2J\x07")
    assert r"a\x1b[2J\x07 holds" in str(raised.value)
    assert len(str(UserError("x" * 10**6))) < 3000
