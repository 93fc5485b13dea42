"""Which files may be written: refused before any work, and nothing is created."""

import os

import pytest

from ms_eagle.errors import UserError
from ms_eagle.system import files


def test_text_is_without_marks_and_carriage_returns():
    assert files.text_of(b"\xef\xbb\xbfone\r\ntwo\rthree\n") == "one\ntwo\rthree\n"
    with pytest.raises(UnicodeDecodeError):
        files.text_of(b"\xff\xfe")


def test_a_new_file_and_an_old_one_may_be_written(tmp_path):
    (tmp_path / "old").touch()
    files.check_output(tmp_path / "old", "--out", [tmp_path / "input", tmp_path])
    files.check_output(tmp_path / "new", "--out", [tmp_path / "new"])  # reading it is refused elsewhere
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old"]


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_file_that_is_read_is_refused_under_any_name(tmp_path, link):
    source, out = tmp_path / "in", tmp_path / ("in" if link is None else "out")
    source.write_text("kept")
    if link is not None:
        link(source, out)
    with pytest.raises(UserError, match=r"^--out: .* is read by this run \(.*/in\)"):
        files.check_output(out, "--out", [tmp_path / "other", source])
    assert source.read_text() == "kept"


def test_places_that_cannot_be_written_are_named(tmp_path):
    for name, message in (
        ("none/out", "there is no directory .*none; make it first"),
        (".", "is a directory; expected a file"),
        ("a\0b", "--out: cannot write"),
        ("x" * 5000, "--out: cannot write"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            files.check_output(tmp_path / name, "--out")
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
