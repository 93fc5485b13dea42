"""The compile cache: a second start takes what the first compiled, and nothing stale, damaged or foreign."""

import os
import shutil
import subprocess
import sys

import pytest
from support import tiny_eagle

from ms_eagle.config.sections import load_config
from ms_eagle.engine import compile_cache
from ms_eagle.engine.compile_cache import CompileCache, is_whole, prune, seal, unchanged_sys, usable
from ms_eagle.kernels import build
from ms_eagle.kernels.build import SOURCES
from ms_eagle.paths import PACKAGE
from ms_eagle.system import quiet

START = """
import sys
from pathlib import Path
from ms_eagle.kernels import build
level = sys.argv.pop()
if level != "best":
    build.usable_levels = lambda: (level,)
from ms_eagle.config.sections import load_config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.loading import load_engine

config = load_config(Path(sys.argv[1]), sys.argv[2:])
engine = load_engine(config)
(done,) = engine.generate([[5, 6, 7]], GenerationOptions(6, ignore_eos=True))
maps = Path("/proc/self/maps").read_text().split()
print(*{path for path in maps if path.endswith("kernels.so")})
print(engine.cache.found, *done.token_ids)
print("still here", file=sys.stderr)
"""


@pytest.fixture
def model(tmp_path):
    source = tiny_eagle.model_dir("qwen3", tmp_path)
    tiny_eagle.config(source, None, [f"model.cache_dir={tmp_path / 'cache'}"])
    (tmp_path / "start.py").write_text(START)
    return tmp_path


def start(root, level="best", libraries=None, **environment):
    options = [f"model.cache_dir={root / 'cache'}", "execution.compile_cache=true", "execution.device=CPU"]
    mine = {*quiet._PLACES, "GLOG_v"}
    inherited = {name: value for name, value in os.environ.items() if name not in mine}
    done = subprocess.run(
        [sys.executable, str(root / "start.py"), str(root / "tiny_eagle.yaml"), *options, level],
        capture_output=True,
        text=True,
        env={**inherited, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert "still here" in done.stderr
    *_, loaded, last = done.stdout.splitlines()
    found, *tokens = last.split()
    if libraries is not None:
        libraries += loaded.split()
    return found == "True", tokens


def test_second_start_finds_the_graphs_of_its_own_kernels_unless_they_are_damaged(model):
    without_compiler = {"PATH": "", "XDG_CACHE_HOME": str(model / "home")}
    eager, native = start(model, **without_compiler), start(model)
    assert (eager[0], native[0]) == (False, False)
    assert native[1] == eager[1]
    assert start(model) == (True, native[1])
    assert start(model, **without_compiler) == (True, eager[1])
    places = list((model / "cache" / "compiled").iterdir())
    assert len(places) == 2
    for place in places:
        assert place.name.endswith("-greedy")  # a sampled cycle is compiled second too, and is another graph
        graph = next(place.rglob("*_1.mindir"))
        graph.chmod(0o600)
        graph.write_bytes(graph.read_bytes()[:-100])
    assert start(model) == (False, native[1])  # damaged: compiled anew
    assert next((model / "cache" / "compiled").glob("*/sealed.json"))


def test_graphs_that_are_kept_run_with_the_one_library_of_who_takes_them_up(model):
    homes = [model / name for name in ("home", "moved")]
    for home in homes:
        shutil.copytree(build.default_directory(), home / "ms_eagle" / "kernels")
    runs = [(homes[0], "best"), (homes[1], "best"), (homes[1], "portable")]
    starts, libraries = [], []
    for home, level in runs:
        loaded: list[str] = []
        starts.append(start(model, level, loaded, XDG_CACHE_HOME=str(home)))
        (library,) = loaded
        assert library.startswith(f"{home}/")
        libraries.append(library)
    shutil.rmtree(homes[0])  # nothing needs the first user's files
    starts.append(start(model, XDG_CACHE_HOME=str(homes[1])))
    assert [found for found, _ in starts] == [False, True, False, True]
    assert all(tokens == starts[0][1] for _, tokens in starts)
    assert "_portable_" in libraries[2]
    for graph in (model / "cache" / "compiled").rglob("*.mindir"):
        assert b"kernels.so" not in graph.read_bytes()


def test_key_follows_everything_that_a_graph_depends_on(model, monkeypatch):
    config = load_config(model / "tiny_eagle.yaml")
    weights = model / "model-qwen3-0"
    libraries = [model / name / "avx512.so" for name in ("home", "moved")]
    for library in libraries:
        library.parent.mkdir()
        library.write_bytes(b"one")

    def key(config=config, kernels="native", library=libraries[0], cores=2):
        return compile_cache.key(
            compile_cache.facts(config, [weights], kernels=kernels, library=library, cores=cores)
        )

    first = key()
    assert key() == first
    assert key(load_config(model / "tiny_eagle.yaml", ["generation.seed=5"])) == first
    assert key(load_config(model / "tiny_eagle.yaml", ["execution.prefill_chunk=9"])) != first
    assert key(kernels="eager", library=None) != first
    assert key(library=libraries[1]) == first  # graphs name no library
    assert key(cores=1) != first
    for name, value in (
        ("versions", lambda: {"mindspore": "0"}),
        ("source_hash", lambda _: "0"),
        ("usable_levels", lambda: ("portable",)),
    ):
        monkeypatch.setattr(compile_cache, name, value)
        assert key() != first
        monkeypatch.undo()
    monkeypatch.setenv("MS_DEV_JIT_SYNTAX_LEVEL", "0")
    assert key() != first
    monkeypatch.undo()
    libraries[0].write_bytes(b"two")
    assert key() != first
    libraries[0].write_bytes(b"one")
    status = (weights / "config.json").stat()
    (weights / "config.json").write_text((weights / "config.json").read_text().replace("1000", "2000"))
    os.utime(weights / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert key() != first


def test_a_changed_source_in_any_room_changes_the_key(tmp_path):
    roots = []
    for name, directory in (("package", PACKAGE), ("kernels", SOURCES.parent)):
        ignored = shutil.ignore_patterns("__pycache__", "*.npz", "*.safetensors")
        roots.append(shutil.copytree(directory, tmp_path / name, ignore=ignored))
    known = {compile_cache.source_hash(roots)}
    rooms = {path.parent: path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".cc")}
    for path in rooms.values():
        path.write_bytes(path.read_bytes() + b"\n")
        known.add(compile_cache.source_hash(roots))
    moved = next(path for path in rooms.values() if path.name != "__init__.py")
    moved.rename(moved.parent / "elsewhere.py")
    known.add(compile_cache.source_hash(roots))
    assert len(rooms) >= 7
    assert len(known) == len(rooms) + 2


def sealed(place, facts):
    place.mkdir()
    (place / "graph").write_bytes(b"x")
    seal(place, facts)
    return place


def test_only_a_directory_sealed_for_the_same_facts_is_whole(tmp_path):
    place, facts = sealed(tmp_path / "place", {"kernels": "native"}), {"kernels": "native"}
    assert is_whole(place, facts)
    assert not is_whole(place, {"kernels": "eager"})
    (tmp_path / "link").symlink_to(place)
    assert not is_whole(tmp_path / "link", facts)
    (place / "graph").chmod(0o666)
    assert not is_whole(place, facts)
    (place / "graph").chmod(0o600)
    assert is_whole(place, facts)
    (place / "more").write_bytes(b"y")
    assert not is_whole(place, facts)


def test_old_keys_go_first_and_nothing_else_goes(tmp_path):
    keys = [sealed(tmp_path / f"{number:032x}-greedy", {}) for number in range(4)]
    kept = [tmp_path / ".git", tmp_path / "thesis", tmp_path / f"{4:032x}-greedy", keys[3]]
    for path in kept[:3]:
        path.mkdir()
        (path / "file").write_text("dear")
    keys[3].rename(tmp_path / "elsewhere")  # a key of ours, somewhere else, with a link to it
    keys[3].symlink_to(tmp_path / "elsewhere")
    for age, path in enumerate([*keys[:3], *kept]):
        os.utime(path, (1e9 - age, 1e9 - age), follow_symlinks=False)
    prune(tmp_path, 1)
    assert {*tmp_path.iterdir()} == {keys[0], *kept, tmp_path / "elsewhere"}
    assert is_whole(tmp_path / "elsewhere", {})


def test_what_lies_in_a_keys_place_and_is_not_ours_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "usable", lambda: True)
    place = tmp_path / f"{compile_cache.key({})}-greedy"
    place.mkdir()
    (place / "file").write_text("dear")
    with CompileCache(tmp_path, {}, pytest.fail).start("greedy"):
        pass
    assert (place / "file").read_text() == "dear"
    assert [*tmp_path.iterdir()] == [place]


def test_sys_is_put_back_and_a_missing_script_means_no_cache(monkeypatch):
    before = sys.stderr, sys.excepthook
    with unchanged_sys():
        sys.stderr, sys.excepthook = None, print
    assert (sys.stderr, sys.excepthook) == before
    monkeypatch.setattr(compile_cache.api, "entry_script_path", "/nowhere/-c")
    assert not usable()
