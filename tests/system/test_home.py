"""A user whom the system does not know has no home; what needs one says so, and what does not works."""

from pathlib import Path

import pytest

from ms_eagle.errors import UserError
from ms_eagle.system import home


@pytest.fixture
def homeless(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)


def test_the_cache_is_below_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home.cache() == tmp_path / "ms_eagle"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home.expanded("~/a") == tmp_path / "a"


def test_without_a_home_the_cache_is_temporary(homeless, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert home.cache().parent == tmp_path
    assert home.expanded("a/b") == Path("a/b")
    with pytest.raises(UserError, match="expected a path that needs no home directory"):
        home.expanded("~/a")
