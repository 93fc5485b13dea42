import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import cache as model_cache
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.cache import MARKER, obtain
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.progress import Progress

SILENT = Progress(quiet=True)


class Builder:
    """Fills a directory with two files and counts how often it had to."""

    def __init__(self, content: str = "weights") -> None:
        self.calls = 0
        self.content = content

    def __call__(self, model: Path, scratch: Path) -> None:
        self.calls += 1
        (scratch / "download").write_text("x" * 100)
        (model / "a").write_text(self.content)
        (model / "b").write_text("b")


def get(root: Path, build: Callable[[Path, Path], None], name: str = "m", **identity: object) -> Path:
    return obtain(root, name, {"source": "s", **identity}, build, SILENT)


def only_models(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".work")


def test_built_once(tmp_path: Path) -> None:
    build = Builder()
    root = tmp_path / "deep" / "cache"
    for _ in range(3):
        directory = get(root, build)
        assert directory == root / "m"
        assert (directory / "a").read_text() == "weights"
    assert build.calls == 1
    assert sorted(path.name for path in directory.iterdir()) == ["a", "b", MARKER]
    assert sorted(path.name for path in (root / ".work" / "m").iterdir()) == ["lock", "seen.json"]


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"g", b"f"))


@pytest.mark.parametrize("damage", ["shorten", "remove", "flip", "zeros of the same time", "garbage"])
def test_a_damaged_model_is_built_again(tmp_path: Path, damage: str) -> None:
    build = Builder()
    directory = get(tmp_path, build)
    status = (directory / "a").stat()
    if damage == "shorten":
        (directory / "a").write_text("weight")
    elif damage == "remove":
        (directory / "b").unlink()
    elif damage == "garbage":
        (directory / MARKER).write_text("[1")
    elif damage == "flip":
        flip(directory / "a")
    else:
        (directory / "a").write_bytes(bytes(status.st_size))
        os.utime(directory / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert get(tmp_path, build) == directory
    assert build.calls == 2
    assert (directory / "a").read_text() == "weights"


def test_a_stray_file_is_no_damage(tmp_path: Path) -> None:
    build = Builder()
    (get(tmp_path, build) / "notes.txt").write_text("mine")
    assert (get(tmp_path, build) / "notes.txt").exists()
    assert build.calls == 1


def test_files_are_hashed_whole_once_after_a_change_and_when_asked_for(tmp_path: Path, monkeypatch) -> None:
    build, hashed = Builder(), []
    directory = get(tmp_path, build)
    whole = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path.name) or whole(path))
    get(tmp_path, build)
    assert hashed == []  # the builder has hashed them
    os.utime(directory / "a", (1, 1))
    for _ in range(2):
        get(tmp_path, build)
    assert hashed == ["a"]
    model_cache.verify(tmp_path)
    for _ in range(2):
        get(tmp_path, build)
    assert hashed == ["a", "a", "b"]
    assert build.calls == 1


def test_what_is_in_the_way_and_no_model_stays(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "file").write_text("dear")
    with pytest.raises(UserError, match="in the way of a converted model"):
        get(tmp_path, Builder())
    assert (tmp_path / "m" / "file").read_text() == "dear"


@pytest.mark.parametrize("name", ["m", ".work", ".work/m"])
def test_nothing_is_read_or_removed_through_a_link(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    get(root, Builder())
    (root / name).rename(elsewhere)
    (root / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(UserError, match=r"is a symbolic link|not one"):
        get(root, Builder(), version=2)
    assert sorted(elsewhere.rglob("*")) == before


def test_a_cache_that_others_can_write_gives_way_to_the_users_own(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    shared, build = tmp_path / "shared", Builder()
    shared.mkdir()
    shared.chmod(0o777)
    directory = obtain(shared, "m", {"source": "s"}, build, Progress())
    assert directory == tmp_path / "xdg" / "ms_eagle" / "models" / "m"
    told = capsys.readouterr().err
    assert "others can write to" in told
    assert told.count("\n") == 1
    (directory / "a").chmod(0o666)
    assert obtain(directory.parent, "m", {"source": "s"}, build, Progress()) == directory
    assert "/m/a (mode 0666): " in capsys.readouterr().err
    assert (directory / "a").stat().st_mode & 0o022 == 0
    assert build.calls == 2


def test_another_identity_is_built_again(tmp_path: Path) -> None:
    build = Builder()
    get(tmp_path, build, version=1)
    get(tmp_path, build, version=2)
    get(tmp_path, build, version=2)
    assert build.calls == 2


def test_outdated_models_of_a_source_are_removed(tmp_path: Path) -> None:
    get(tmp_path, Builder(), "first", version=1)
    obtain(tmp_path, "other", {"source": "another"}, Builder(), SILENT)
    (tmp_path / "foreign").mkdir()
    get(tmp_path, Builder(), "second", version=2)
    assert only_models(tmp_path) == ["foreign", "other", "second"]


@pytest.mark.parametrize("error", [UserError("no"), KeyboardInterrupt(), RuntimeError("bug")])
def test_a_failed_build_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def build(model: Path, scratch: Path) -> None:
        (model / "a").write_text("half")
        raise error

    with pytest.raises(type(error)):
        get(tmp_path, build)
    assert only_models(tmp_path) == []
    assert [path.name for path in (tmp_path / ".work" / "m").iterdir()] == ["lock"]
    assert get(tmp_path, Builder()).is_dir()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"cannot prepare the model in .*file/cache: Not a directory; .*local"
    ):
        get(tmp_path / "file" / "cache", Builder())

    def full(model: Path, scratch: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        get(tmp_path, full)


@pytest.mark.parametrize(
    ("text", "name"), [("a b/c:ü", "a-b-c"), ("..", "model"), ("Q4_1.x-2", "Q4_1.x-2"), ("", "model")]
)
def test_safe_names(text: str, name: str) -> None:
    assert model_cache.safe_name(text) == name


# A process that resolves a GGUF file and pauses after two pieces: to be killed, or just to take a while.
CHILD = """
import sys, time
from pathlib import Path
from ms_eagle.checkpoints.gguf import importing as gguf_import; from ms_eagle.checkpoints import sources

source, cache, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
original = gguf_import.read_rows

def slow_rows(*arguments):
    for piece in original(*arguments):
        yield piece
        slow_rows.pieces += 1
        if slow_rows.pieces == 2:
            with open(log, "a") as file:
                file.write("converting\\n")
            time.sleep(seconds)

slow_rows.pieces = 0
gguf_import.read_rows = slow_rows
print(sources.resolve(str(source), cache_dir=cache, widened=True).directory)
"""


def start(source: Path, cache: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(source), str(cache), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the process ended early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_gguf.save(tmp_path / "model.gguf", tiny.make("llama"))


def test_a_killed_conversion_is_not_taken_for_a_model(tmp_path: Path, source: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    process = start(source, cache, log, seconds=600)
    wait_for(log.exists, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert only_models(cache) == []
    half = list(cache.glob(".work/*/.*.tmp/new/*"))
    assert half, "the killed process was expected to leave a half-written model"

    directory = sources.resolve(str(source), cache_dir=cache, widened=True).directory
    assert len(Checkpoint.open(directory).names) == 2 * 9 + 3
    assert only_models(cache) == [directory.name]
    assert not list(cache.glob(".work/*/.*.tmp"))


def test_two_processes_convert_once(tmp_path: Path, source: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    first = start(source, cache, log, seconds=2)
    wait_for(log.exists, first)
    second = start(source, cache, log, seconds=0)
    outputs = {process.communicate(timeout=60)[0] for process in (first, second)}
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(outputs) == 1
    assert log.read_text() == "converting\n"
    directory = Path(outputs.pop().strip())
    assert len(Checkpoint.open(directory).names) == 2 * 9 + 3
    sizes = json.loads((directory / MARKER).read_text())["sizes"]
    assert sizes.keys() >= {"config.json", "model.safetensors", "generation_config.json", "tokenizer.json"}


def test_waiting_for_a_killed_process_ends(tmp_path: Path, source: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    first = start(source, cache, log, seconds=600)
    wait_for(log.exists, first)
    second = start(source, cache, log, seconds=0)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert (Path(output.strip()) / "model.safetensors").exists()
