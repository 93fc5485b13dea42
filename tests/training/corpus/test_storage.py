"""The corpus file: what it keeps, what it refuses, and that a failed save costs nothing."""

import dataclasses
import errno
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.corpora import MADE, ROWS

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.training.corpus.storage import (
    SCHEMA,
    Row,
    answer_runs,
    build,
    contents_sha256,
    read_corpus,
    write_corpus,
)


@pytest.fixture
def corpus():
    return build(ROWS, MADE, {"self:1": "loop", "self:2": "empty", "self:4": "loop"})


@pytest.fixture
def path(tmp_path, corpus):
    file = tmp_path / "c.npz"
    write_corpus(file, corpus)
    return file


def rewritten(path: Path, **changes) -> Path:
    """The file with some arrays replaced, or left out where None."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_arrays_of_a_hand_made_corpus(path):
    found = read_corpus(path)
    assert found.ids.tolist() == [1, 5, 6, 7, 2, 1, 9, 8, 2, 4, 3, 2, 1, 95]
    assert found.role.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1]
    assert found.offsets.tolist() == [0, 5, 12, 14]
    assert (found.source.tolist(), found.source_names) == ([0, 1, 0], ("self", "prompts"))
    assert [a.dtype.name for a in (found.ids, found.role, found.offsets)] == ["uint16", "uint8", "int64"]
    manifest = found.manifest
    assert manifest.conversations == {"self": 2, "prompts": 1}
    assert manifest.answer_tokens == {"self": 4, "prompts": 4}
    assert manifest.dropped == {"loop": 2, "empty": 1}
    assert manifest.provenance == MADE
    assert found.dropped["self:2"] == "empty"
    assert len(found) == 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 95), st.booleans()), min_size=1), min_size=1), st.data())
def test_rows_come_back_as_they_were(tmp_path_factory, tokens, data):
    rows = []
    for number, row in enumerate(tokens):
        role = np.array([own for _, own in row], np.uint8)
        source = data.draw(st.sampled_from(["a", "b", "ü"]))
        rows.append(Row(f"{source}:{number}", source, [token for token, _ in row], answer_runs(role)))
        assert sum(end - start for start, end in rows[number].answers) == role.sum()
    wide = MADE.model_copy(update={"vocab_size": 1 << 17}) if data.draw(st.booleans()) else MADE
    file = tmp_path_factory.mktemp("corpus") / "c.npz"
    write_corpus(file, build(rows, wide, {}))
    found = read_corpus(file)
    assert found.rows() == rows
    assert found.ids.dtype == (np.uint32 if wide.vocab_size > 1 << 16 else np.uint16)


def test_an_empty_corpus_is_neither_made_nor_read(path):
    with pytest.raises(UserError, match=r"no conversation is left for the corpus \(1 were dropped\)"):
        build([], MADE, {"self:0": "loop"})
    nothing = dict(ids=np.zeros(0, np.uint16), role=np.zeros(0, np.uint8), offsets=np.zeros(1, np.int64))
    with pytest.raises(UserError, match="holds no conversations"):
        read_corpus(rewritten(path, **nothing, source=np.zeros(0, np.uint8)))


def test_a_missing_file_and_one_without_manifest(path, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_corpus(tmp_path / "none.npz")
    with pytest.raises(UserError, match=r"has no manifest.*make_corpus.py --import"):
        read_corpus(rewritten(path, manifest=None))


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9, 0.999])
def test_a_torn_file(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(UserError, match="is damaged or no corpus"):
        read_corpus(path)


def test_no_flipped_byte_goes_unnoticed(path):
    whole, data = read_corpus(path), path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            found = read_corpus(path)
        except UserError:
            continue
        # a byte of the container that means nothing, such as a date
        assert found.rows() == whole.rows()
        assert found.manifest == whole.manifest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(role=None), "has no array 'role'"),
        (dict(ids=np.zeros(14)), "not integers of the right types"),
        (dict(ids=np.zeros((2, 7), np.uint16)), "not one-dimensional"),
        (dict(offsets=np.array([0, 5, 5, 14])), "offsets or roles do not fit"),
        (dict(offsets=np.array([0, 5, 12, 13])), "offsets do not cover its tokens"),
        (dict(role=np.full(14, 2, np.uint8)), "offsets or roles do not fit"),
        (dict(source=np.array([0, 2, 0], np.uint8)), "a source or an id out of range"),
        (dict(ids=np.arange(14, dtype=np.uint16)), "do not match the hash of its manifest"),
        (dict(source_names=np.array(["prompts", "self"])), "do not match the hash of its manifest"),
        (dict(manifest=np.array("{")), "its manifest is not JSON"),
        (dict(manifest=np.array("[]")), "not a JSON object"),
        (dict(manifest=np.array('{"schema_version": 1}')), "its manifest is not valid at sha256"),
        (dict(manifest=np.array('{"schema_version": 2}')), "is a corpus of schema 2; expected 1"),
        (dict(journal=None), "its journal does not match"),
        (dict(journal=np.array('{"keys": ["a"], "dropped": {}}')), "its journal does not match"),
        (dict(ids=np.array([{}] * 14, object)), "not a whole .npz file"),  # a pickle is not opened
    ],
)
def test_damage_is_named(path, changes, message):
    with pytest.raises(UserError, match=message):
        read_corpus(rewritten(path, **changes))


def test_ids_beyond_the_vocabulary(path):
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["ids"][3] = 96
    manifest = json.loads(str(arrays["manifest"]))
    names = [str(name) for name in arrays["source_names"]]
    manifest["sha256"] = contents_sha256(*(arrays[n] for n in ("ids", "role", "offsets", "source")), names)
    with pytest.raises(UserError, match="the id 96 beyond the teacher's vocabulary"):
        read_corpus(rewritten(path, ids=arrays["ids"], manifest=np.array(json.dumps(manifest))))


def test_a_full_disk_leaves_the_old_file(path, corpus, tmp_path):
    before = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 96, 100_000).tolist()
    larger = build([*ROWS, Row("self:5", "self", noise, ((0, len(noise)),))], MADE, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a write fails in the middle, for real
    try:
        with pytest.raises(UserError, match=r"cannot write .*: File too large; what was there before is unt"):
            write_corpus(path, larger)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_at_the_last_moment(path, corpus, tmp_path, monkeypatch):
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_corpus(path, build(ROWS[:1], MADE, {}))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_manifest_is_immutable(corpus):
    with pytest.raises(ValueError, match="frozen"):
        corpus.manifest.sha256 = ""
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.ids = corpus.role
    assert corpus.sha256 == corpus.manifest.sha256
    assert corpus.manifest.schema_version == SCHEMA
