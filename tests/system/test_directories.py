"""Directories that appear whole; what is killed is tried where bundles and models are written."""

import os
import platform

import pytest

from ms_eagle.system.directories import appearing


def fill(final, text, **how):
    with appearing(final, **how) as new:
        (new.parent / "scratch").mkdir()
        (new / "file").write_text(text)


def test_it_takes_the_place_of_an_empty_one_and_of_a_full_one_only_if_told(tmp_path):
    final, work = tmp_path / "d", tmp_path / "work"
    final.mkdir()
    work.mkdir()
    fill(final, "first", within=work)
    with pytest.raises(OSError, match="not empty"):
        fill(final, "second")
    assert (final / "file").read_text() == "first"
    fill(final, "third", within=work, replace=True)
    assert (final / "file").read_text() == "third"
    assert sorted(os.listdir(tmp_path)) == ["d", "work"]
    assert not os.listdir(work)


def test_who_wants_to_be_alone_is_told_of_the_other_at_once(tmp_path):
    with appearing(tmp_path / "d") as new:
        with pytest.raises(FileExistsError, match="another process is making it in"):
            fill(tmp_path / "d", "second", alone=True)
        (new / "file").write_text("first")
        fill(tmp_path / "e", "another", alone=True)
    assert (tmp_path / "d" / "file").read_text() == "first"


def test_only_dead_workspaces_of_ours_are_removed(tmp_path):
    suffix = f".{platform.node()}.x.tmp"
    dead, empty, strange, link = (tmp_path / f".{name}{suffix}" for name in ("a", "b", "c", "d"))
    for path in (dead, empty, strange):
        path.mkdir()
    (dead / ".ms_eagle").touch()
    (strange / "file").write_text("dear")
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".ms_eagle").touch()
    fill(tmp_path / "e", "text")
    assert sorted(os.listdir(tmp_path)) == sorted([strange.name, link.name, "e", "elsewhere"])
    assert (tmp_path / "elsewhere" / ".ms_eagle").exists()
