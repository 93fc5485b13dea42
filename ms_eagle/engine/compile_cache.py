"""MindSpore's compile cache, used so that it can never be stale.

MindSpore keeps the graphs that its front end has made, and takes them again when the Python files that it
knows of are unchanged. That is not enough: it knows its graphs by the order of their compilation alone, looks
at neither sizes nor versions, and settles on one directory for the life of a process. So only an engine's
first graphs are kept here, always compiled in the same order, in a directory named by everything that they
depend on; and it is used only if it holds exactly what was sealed in it.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore.graph import api

from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import SOURCES
from ms_eagle.paths import PACKAGE
from ms_eagle.system import directories, files, home, json_file
from ms_eagle.system.provenance import versions

_SEAL = "sealed.json"
_SOURCES = frozenset((".py", ".cc", ".h"))
_KEPT = 16  # keys; the ones used longest ago go first


def default_directory() -> Path:
    """Where this user's compiled graphs are, e.g. ``~/.cache/ms_eagle/compiled``."""
    return home.cache() / "compiled"


def key(config: Config, models: Sequence[Path], facts: Mapping[str, Any]) -> str:
    """What a graph depends on, as one hexadecimal number: configuration, weights, versions, sources.

    Args:
        config: all sections but ``generation``, of which no graph knows.
        models: directories of weights; their files count by name, size and time of change. Graphs hold no
            weights, only their shapes.
        facts: further ones, such as the device.
    """
    described = {
        "config": config.model_dump(mode="json", exclude={"generation"}),
        "weights": [_identity(path) for directory in models for path in sorted(directory.iterdir())],
        "versions": versions(),
        "sources": source_hash((PACKAGE, SOURCES.parent)),
        **facts,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def source_hash(directories: Sequence[Path]) -> str:
    """One hexadecimal SHA-256 of all Python and C++ sources below ``directories``, places and contents."""
    digest = hashlib.sha256()
    for index, directory in enumerate(directories):
        for path in sorted(directory.rglob("*")):
            if path.suffix in _SOURCES and path.is_file():
                place = path.relative_to(directory).as_posix()
                digest.update(f"{index}:{place}:{path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _identity(path: Path) -> list[str | int]:
    status = path.stat()
    return [path.name, status.st_size, status.st_mtime_ns]


class CompileCache:
    """The graphs that an engine compiles first, under one key.

    Attributes:
        found: whether they were there; None before a start.
    """

    def __init__(self, root: Path, key: str) -> None:
        """Nothing is read or written before the start.

        Args:
            root: of all keys.
            key: see ``key``.
        """
        self._root, self._key = root, key
        self.found: bool | None = None

    @contextlib.contextmanager
    def start(self, kind: str) -> Iterator[None]:
        """Let MindSpore take the graphs that are compiled inside from the cache, or put them there.

        A cache that cannot be written is as good as none; so is one of a process that has used one already.

        Args:
            kind: says which graphs, in which order.
        """
        self.found = False
        place = self._root / f"{self._key[:32]}-{kind}"
        with contextlib.ExitStack() as making:
            try:
                used = self._prepare(place, making) if usable() else None
            except OSError:
                used = None
            if used is None:
                yield
                return
            ms.set_context(enable_compile_cache=True, compile_cache_path=str(used))
            try:
                with unchanged_sys():
                    yield
            finally:
                ms.set_context(enable_compile_cache=False)
            if used == place:
                self.found = is_whole(place)
                return
            with contextlib.suppress(OSError):  # what is not sealed counts for nothing
                seal(used)
            with contextlib.suppress(OSError):  # another process was first
                making.close()
            prune(self._root)

    def _prepare(self, place: Path, making: contextlib.ExitStack) -> Path:
        """The directory to compile with: ``place`` if it is whole, else a new one that is to become it."""
        if is_whole(place):
            os.utime(place)
            return place
        shutil.rmtree(place, ignore_errors=True)
        self._root.mkdir(parents=True, exist_ok=True)
        return making.enter_context(directories.appearing(place))


def usable() -> bool:
    """Whether MindSpore's cache can work in this process.

    It settles on its first directory, so a process that has used one cannot use another. And it looks for the
    files that graphs depend on from the script that was started: ``python -c`` has none.
    """
    script = getattr(api, "entry_script_path", None)
    return not ms.get_context("compile_cache_path") and script is not None and Path(script).is_file()


@contextlib.contextmanager
def unchanged_sys() -> Iterator[None]:
    """Put back what is lost of the module ``sys`` inside.

    MindSpore makes the modules that a script imports anew to learn their files, and making ``sys`` anew sets
    its streams and hooks to those of a fresh interpreter.
    """
    before = dict(vars(sys))
    try:
        yield
    finally:
        for name, value in before.items():
            if getattr(sys, name, None) is not value:
                setattr(sys, name, value)


def seal(place: Path) -> None:
    """Write down what a directory holds, for ``is_whole``."""
    json_file.write_object(place / _SEAL, _hashes(place))


def is_whole(place: Path) -> bool:
    """Whether a directory holds exactly what was sealed in it."""
    try:
        sealed = json_file.read_object(place / _SEAL)
        return bool(sealed) and sealed == _hashes(place)
    except (OSError, UserError):
        return False


def prune(root: Path, kept: int = _KEPT) -> None:
    """Remove all but the ``kept`` keys used last, and what an interrupted process left behind."""
    with contextlib.suppress(OSError):
        known = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [path for path in known if not path.name.startswith(".")][kept:]:
            shutil.rmtree(path, ignore_errors=True)
        newest = known[0].stat().st_mtime if known else 0.0
        for path in known:
            if path.name.startswith(".") and newest - path.stat().st_mtime > 3600:
                shutil.rmtree(path, ignore_errors=True)


def _hashes(place: Path) -> dict[str, object]:
    return {
        path.relative_to(place).as_posix(): files.sha256(path)
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != _SEAL
    }
