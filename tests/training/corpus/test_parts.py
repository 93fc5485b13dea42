"""Parts of a run under way: whole or absent, of one making, written by one run."""

import errno
import os

import pytest
from support.corpora import MADE, ROWS

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.training.corpus.parts import Outcome, Parts


@pytest.fixture
def out(tmp_path):
    return tmp_path / "c.npz"


def fill(out, *counts):
    with Parts(out, MADE) as parts:
        list(parts.outcomes())
        for count in counts:
            parts.add([Outcome.of_row(row) for row in ROWS[:count]])
        return parts.folder


def test_outcomes_come_back_in_order_over_several_runs(out):
    turn = Outcome(kind="turn", key="self 1", text="Hi there")
    given = [turn, Outcome(kind="dropped", key="self 2", text="turn loops")]
    fill(out, 2)
    with Parts(out, MADE) as parts:
        list(parts.outcomes())
        parts.add(given)
    with Parts(out, MADE) as parts:
        found = list(parts.outcomes())
    assert [outcome.row() for outcome in found[:2]] == ROWS[:2]
    assert found[2:] == given
    parts.remove()
    assert not parts.folder.exists()


def test_a_full_disk_keeps_finished_parts(out, monkeypatch):
    folder = fill(out, 1)
    before = sorted(path.name for path in folder.iterdir())

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Parts(out, MADE) as parts:
        list(parts.outcomes())
        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device; finished work is kept"):
            parts.add([Outcome.of_row(ROWS[1])])
    assert sorted(path.name for path in folder.iterdir()) == before


def test_two_runs_at_once(out):
    with Parts(out, MADE), pytest.raises(UserError, match="another run writes"):  # noqa: SIM117
        with Parts(out, MADE):
            pass
    with Parts(out, MADE):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(seed=1), "made with seed 0, asked for is 1"),
        (dict(generation={"max_new_tokens": 9}), "made with max_new_tokens 8, asked for is 9"),
        (dict(system_prompt="Hi"), "made with system_prompt None, asked for is 'Hi'"),
        (dict(teacher_sha256="9" * 64), "made with another teacher: its sha256 is 1{64}.*9{64}"),
        (dict(template_sha256="9" * 64), "made with another chat template: its sha256 is 2{64}.*9{64}"),
    ],
)
def test_other_settings_are_refused(out, changes, message):
    fill(out, 1)
    with pytest.raises(UserError, match=message), Parts(out, MADE.model_copy(update=changes)):
        pass
    with Parts(out, MADE.model_copy(update={"teacher": "the same, elsewhere"})):
        pass


_UNKNOWN = '{"outcomes": [{"kind": "x", "key": "a"}]}'


@pytest.mark.parametrize("damage", ['{"outcomes": [{"kind": "row"', _UNKNOWN, ""])
def test_a_damaged_part_is_named(out, damage):
    folder = fill(out, 1, 2)
    (folder / "000001.json").write_text(damage)
    with Parts(out, MADE) as parts, pytest.raises(UserError, match=r"000001.json is damaged; remove it"):
        list(parts.outcomes())


def test_what_a_killed_write_left_behind_is_no_part(out):
    folder = fill(out, 1)
    (folder / ".000001.json.x.tmp").write_text('{"outc')
    with Parts(out, MADE) as parts:
        assert len(list(parts.outcomes())) == 1
