"""Models in several GGUF files, as llama-gguf-split makes them."""

from pathlib import Path

import numpy as np
import pytest
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.errors import UserError

COUNT = 3


def name(number: int, count: int = COUNT) -> str:
    return f"tiny-{number:05}-of-{count:05}.gguf"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """The first of three parts; the others hold tensors and no settings of the model."""
    model = tiny.make("llama")
    arrays = list(tiny_gguf.tensors(model).items())
    for number in range(1, COUNT + 1):
        keys = {"split.count": COUNT, "split.no": number - 1, "split.tensors.count": len(arrays)}
        keys |= tiny_gguf.metadata(model) if number == 1 else {}
        part = dict(arrays[number - 1 :: COUNT])
        tiny_gguf.write(tmp_path / name(number), "llama", keys, part)
    return tmp_path / name(1)


def test_all_parts_are_read(split: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.save(tmp_path / "whole.gguf", tiny.make("llama"))
    found, expected = (
        Checkpoint.open(sources.resolve(str(path), cache_dir=tmp_path / "cache").directory)
        for path in (split, whole)
    )
    assert found.names == expected.names
    for each in found.names:
        np.testing.assert_array_equal(found.read(each), expected.read(each))


def test_another_later_part_is_converted_anew(split: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = sources.resolve(str(split), cache_dir=cache).directory
    assert sources.resolve(str(split), cache_dir=cache).directory == first
    part = split.with_name(name(3))
    data = part.read_bytes()
    part.write_bytes(data[: len(data) - 4] + np.float32(0.5).tobytes())
    assert sources.resolve(str(split), cache_dir=cache).directory != first


@pytest.mark.parametrize("number", [2, 3])
def test_a_later_part_names_the_first(split: Path, tmp_path: Path, number: int) -> None:
    message = f"is part {number} of a split model of 3; expected its first part, such as {name(1)}"
    with pytest.raises(UserError, match=message):
        sources.resolve(str(split.with_name(name(number))), cache_dir=tmp_path / "cache")


def test_parts_that_are_missing_or_mixed_up_are_named(split: Path, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(UserError) as caught:
            sources.resolve(str(path), cache_dir=tmp_path / "cache")
        return str(caught.value)

    second, third = split.with_name(name(2)), split.with_name(name(3))
    kept = second.read_bytes()
    second.write_bytes(third.read_bytes())
    assert "its split.no is 2, expected 1" in refused(split)
    second.unlink()
    assert f"part 2 of the model, {name(2)}, is missing" in refused(split)
    second.write_bytes(kept)
    assert "such as model-00002-of-00003.gguf" in refused(split.rename(tmp_path / "first.gguf"))
    assert "such as model-00002-of-00003.gguf" in refused(
        (tmp_path / "first.gguf").rename(tmp_path / name(1, 2))
    )
