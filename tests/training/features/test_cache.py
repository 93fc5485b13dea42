"""A cache gives what was computed, continues after a kill, and notices damage, strangers and full disks."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest
from support import toy_corpus

from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress
from ms_eagle.training.features import cache as feature_cache
from ms_eagle.training.features.cache import FeatureCache, build, cache_folder
from ms_eagle.training.features.layout import Kind
from ms_eagle.training.features.teacher import Features

QUIET, TAPS, WIDTH = Progress(quiet=True), (1, 4), 3
CORPUS = toy_corpus.corpus([4, 2, 7, 1, 5])


def features(number: int, ids: np.ndarray) -> Features:
    """Values that belong to this conversation alone."""
    base = np.arange(len(ids))[:, None] + 100 * number
    return Features(
        (base + np.arange(2 * WIDTH) / 16).astype(np.float16), (-base - np.arange(WIDTH)).astype(np.float16)
    )


class Teacher:
    """Computes conversations backwards, counts them, and dies before the one asked for."""

    width = WIDTH

    def __init__(self, dies_after: int = 99) -> None:
        self.read, self.dies_after = [], dies_after

    def compute(self, conversations):
        for number, ids in reversed(list(conversations)):
            if len(self.read) == self.dies_after:
                raise KeyboardInterrupt
            self.read.append(number)
            yield number, features(number, ids)


KIND = Kind("t", TAPS)


def make(folder, teacher=None, corpus=CORPUS, kind=KIND):
    return build(folder, kind, corpus, lambda: teacher or Teacher(), QUIET)


def check(cache: FeatureCache) -> None:
    for number, found in zip([2, 0, 4, 3, 1], cache.read([2, 0, 4, 3, 1]), strict=True):
        wanted = features(number, np.zeros(np.diff(CORPUS.offsets)[number]))
        np.testing.assert_array_equal(found.taps, wanted.taps)
        np.testing.assert_array_equal(found.final, wanted.final)


def test_gives_what_was_computed_and_computes_once(tmp_path):
    teacher = Teacher()
    check(make(tmp_path / "c", teacher))
    assert sorted(teacher.read) == [0, 1, 2, 3, 4]
    never = SimpleNamespace()  # has no method to compute with
    check(make(tmp_path / "c", never))
    check(FeatureCache(tmp_path / "c", KIND, CORPUS))


def test_a_killed_run_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "_SAVE_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "c", Teacher(dies_after=3))
    with pytest.raises(UserError, match="2 of 5 conversations have no features yet"):
        FeatureCache(tmp_path / "c", KIND, CORPUS)
    rest = Teacher()
    check(make(tmp_path / "c", rest))
    assert sorted(rest.read) == [0, 1]


def test_unsaved_work_is_done_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "c", Teacher(dies_after=3))
    again = Teacher()
    check(make(tmp_path / "c", again))
    assert sorted(again.read) == [0, 1, 2, 3, 4]


def test_damage_is_noticed(tmp_path):
    cache = make(tmp_path / "c")
    with open(tmp_path / "c" / "final.f16", "r+b") as file:
        file.seek(2 * WIDTH * int(CORPUS.offsets[2]))
        file.write(b"\x01\x02")
    cache.read([0, 1, 3, 4])
    with pytest.raises(UserError, match="the features of conversation 2 are damaged; remove the folder"):
        cache.read([2])
    os.truncate(tmp_path / "c" / "taps.f16", 10)
    with pytest.raises(UserError, match=r"taps.f16 has 10 bytes, expected 228"):
        make(tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(kind=Kind("other", TAPS)), "teacher is t, expected other"),
        (dict(kind=Kind("t", (1, 5))), r"taps is \[1, 4\], expected \[1, 5\]"),
        (dict(corpus=toy_corpus.corpus([4, 2, 7, 1, 5], seed=1)), "conversations is .*, expected"),
    ],
)
def test_refuses_features_of_something_else(tmp_path, change, message):
    make(tmp_path / "c")
    with pytest.raises(UserError, match=message):
        make(tmp_path / "c", **change)


def test_every_input_has_its_folder(tmp_path):
    moved = SimpleNamespace(ids=CORPUS.ids, offsets=CORPUS.offsets.copy())
    moved.offsets[1] += 1
    folders = {
        cache_folder(tmp_path, KIND, CORPUS),
        cache_folder(tmp_path, Kind("u", TAPS), CORPUS),
        cache_folder(tmp_path, Kind("t", (1, 5)), CORPUS),
        cache_folder(tmp_path, KIND, moved),
    }
    assert len(folders) == 4


def test_room_is_taken_before_the_work(tmp_path, monkeypatch):
    def full(handle, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"no room for 0.0 GB of features \(No space left on device\)"):
        make(tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_an_extended_corpus_takes_what_it_shares(tmp_path):
    def cut(order):
        parts = [CORPUS.ids[slice(*CORPUS.offsets[i : i + 2])] for i in order]
        offsets = np.cumsum([0, *map(len, parts)])
        return SimpleNamespace(ids=np.concatenate(parts), offsets=offsets)

    make(tmp_path / "a", corpus=cut([4, 0, 2]))
    make(tmp_path / "damaged", corpus=cut([1]))
    os.truncate(tmp_path / "damaged" / "taps.f16", 1)
    make(tmp_path / "other", corpus=cut([3]), kind=Kind("u", TAPS))
    rest = Teacher()
    cache = make(tmp_path / "c", rest)
    assert sorted(rest.read) == [1, 3]
    # The values are those of the first corpus, where the conversations had other numbers.
    for number, (own, found) in enumerate(zip([4, 0, 2], cache.read([4, 0, 2]), strict=True)):
        np.testing.assert_array_equal(
            found.taps, features(number, np.zeros(np.diff(CORPUS.offsets)[own])).taps
        )
