"""What somebody else can have written is refused, and another place is found."""

import os
import tempfile

import pytest

from ms_eagle.system import private
from ms_eagle.system.private import Exposed


def test_links_others_files_and_files_others_can_write_are_exposed(tmp_path, monkeypatch):
    place = tmp_path / "a" / "b"
    old = os.umask(0o002)
    try:
        private.make(place)
        (place / "file").touch()
    finally:
        os.umask(old)
    private.check(place)
    with pytest.raises(Exposed, match=r"others can write to .*/file \(mode 0664\)"):
        private.check_tree(place)
    private.close(place)
    private.check_tree(place)
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(Exposed, match="is a symbolic link"):
        private.make(tmp_path / "link")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    if user == 0:  # root's places are everybody's to trust
        os.chown(place, user + 2, -1)
    with pytest.raises(Exposed, match=rf"belongs to user .*, expected user {user + 1}"):
        private.check(place)


@pytest.mark.parametrize("fault", ["exposed", "cannot be made"])
def test_another_place_of_the_same_name_is_found(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told, preferred = [], tmp_path / "home" / "kernels"
    if fault == "exposed":
        preferred.mkdir(parents=True)
        preferred.chmod(0o777)
    else:
        preferred.parent.write_text("")
    found = private.writable(preferred, told.append)
    assert found == tmp_path / f"ms_eagle-{os.geteuid()}" / "kernels"
    assert found.stat().st_mode & 0o777 == 0o700
    assert len(told) == (fault == "exposed")
    found.parent.chmod(0o777)  # somebody has taken it
    other = private.writable(preferred, told.append)
    assert other.parent.parent == tmp_path
    assert other.parent != found.parent
