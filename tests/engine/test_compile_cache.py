"""The compile cache: a second start takes what the first compiled, and nothing stale, damaged or foreign."""

import os
import shutil
import subprocess
import sys

import pytest
from support import tiny_eagle

from ms_eagle.config.sections import load_config
from ms_eagle.engine import compile_cache
from ms_eagle.engine.compile_cache import is_whole, prune, seal, unchanged_sys, usable
from ms_eagle.kernels.build import SOURCES
from ms_eagle.paths import PACKAGE
from ms_eagle.system import quiet

START = """
import sys
from pathlib import Path
from ms_eagle.config.sections import load_config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.loading import load_engine

config = load_config(Path(sys.argv[1]), sys.argv[2:])
engine = load_engine(config)
(done,) = engine.generate([[5, 6, 7]], GenerationOptions(6, ignore_eos=True))
print(engine.cache.found, *done.token_ids)
print("still here", file=sys.stderr)
"""


@pytest.fixture
def model(tmp_path):
    source = tiny_eagle.model_dir("qwen3", tmp_path)
    tiny_eagle.config(source, None, [f"model.cache_dir={tmp_path / 'cache'}"])
    (tmp_path / "start.py").write_text(START)
    return tmp_path


def start(root):
    options = [f"model.cache_dir={root / 'cache'}", "execution.compile_cache=true", "execution.device=CPU"]
    mine = {*quiet._PLACES, "GLOG_v"}
    done = subprocess.run(
        [sys.executable, str(root / "start.py"), str(root / "tiny_eagle.yaml"), *options],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in mine},
    )
    assert done.returncode == 0, done.stderr
    assert "still here" in done.stderr
    found, *tokens = done.stdout.splitlines().pop().split()
    return found == "True", tokens


def test_second_start_finds_the_graphs_unless_they_are_damaged(model):
    first = start(model)
    assert not first[0]
    assert start(model) == (True, first[1])
    (place,) = (model / "cache" / "compiled").iterdir()
    assert place.name.endswith("-greedy")  # a sampled cycle is compiled second as well, and is another graph
    graph = next(place.rglob("*_1.mindir"))
    graph.chmod(0o600)
    graph.write_bytes(graph.read_bytes()[:-100])
    assert start(model) == (False, first[1])  # damaged: compiled anew
    assert is_whole(place)


def test_key_follows_everything_that_a_graph_depends_on(model, monkeypatch):
    config = load_config(model / "tiny_eagle.yaml")
    weights = model / "model-qwen3-0"

    def key(config=config, **facts):
        return compile_cache.key(config, [weights], facts)

    first = key()
    assert key() == first
    assert key(load_config(model / "tiny_eagle.yaml", ["generation.seed=5"])) == first
    assert key(load_config(model / "tiny_eagle.yaml", ["execution.prefill_chunk=9"])) != first
    assert key(device="Ascend") != first
    monkeypatch.setattr(compile_cache, "versions", lambda: {"mindspore": "0"})
    assert key() != first
    monkeypatch.undo()
    monkeypatch.setattr(compile_cache, "source_hash", lambda _: "0")
    assert key() != first
    monkeypatch.undo()
    os.utime(weights / "model.safetensors", (1, 1))
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


def test_only_a_sealed_directory_is_whole(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "graph").write_bytes(b"x")
    assert not is_whole(place)
    seal(place)
    assert is_whole(place)
    (place / "more").write_bytes(b"y")
    assert not is_whole(place)


def test_old_keys_go_first(tmp_path):
    for age, name in enumerate(("new", "old", "oldest")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    prune(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old"}


def test_sys_is_put_back_and_a_missing_script_means_no_cache(monkeypatch):
    before = sys.stderr, sys.excepthook
    with unchanged_sys():
        sys.stderr, sys.excepthook = None, print
    assert (sys.stderr, sys.excepthook) == before
    monkeypatch.setattr(compile_cache.api, "entry_script_path", "/nowhere/-c")
    assert not usable()
