"""MindSpore's compile cache, used so that it can never be stale, and never another user's.

MindSpore keeps the graphs that its front end has made, and takes them again when the Python files that it
knows of are unchanged. That is not enough: it knows its graphs by the order of their compilation alone, looks
at neither sizes nor versions, and settles on one directory for the life of a process. So only an engine's
first graphs are kept here, always compiled in the same order, in a directory named by everything that they
depend on; and it is used only if it holds exactly what was sealed in it, for exactly these facts.

A graph that is kept names no library of kernels, see ``kernels.naming``: MindSpore is given a copy for the
moment that names the one this process has loaded.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore.graph import api
from mindspore.train.mind_ir_pb2 import ModelProto

from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import SOURCES, usable_levels
from ms_eagle.kernels.naming import PLACEHOLDER, name_library
from ms_eagle.paths import PACKAGE
from ms_eagle.system import directories, files, home, json_file, private
from ms_eagle.system.private import Exposed
from ms_eagle.system.provenance import versions

_SEAL = "sealed.json"
_NAME = re.compile("[0-9a-f]{32}-[a-z]+")
_WHOLE = 1 << 20  # bytes; of larger files of weights the sizes, times and headers count
_SOURCES = frozenset((".py", ".cc", ".h"))
_KEPT = 16  # keys; the ones used longest ago go first


def default_directory() -> Path:
    """Where this user's compiled graphs are, e.g. ``~/.cache/ms_eagle/compiled``."""
    return home.cache() / "compiled"


def facts(
    config: Config, models: Sequence[Path], *, kernels: str, library: Path | None, cores: int
) -> dict[str, Any]:
    """Everything that a graph depends on, as JSON values.

    Args:
        config: all sections but ``generation``, of which no graph knows.
        models: directories of weights. Graphs hold no weights, only shapes and numbers of configurations:
            small files count by their content, large ones by size, time of change and first bytes.
        kernels: those that were chosen, not what the configuration left to choose.
        library: the native ones, or None.
        cores: that this process may use.
    """
    return {
        "config": config.model_dump(mode="json", exclude={"generation"}),
        "weights": [_identity(path) for directory in models for path in sorted(directory.iterdir())],
        "versions": versions(),
        "sources": source_hash((PACKAGE, SOURCES.parent)),
        "device": ms.get_context("device_target"),
        "kernels": kernels,
        "library": None if library is None else files.sha256(library),
        "processor": [platform.machine(), usable_levels()[0], cores],
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("MS_") and not name.endswith("_PATH")  # those say where, not what
        },
    }


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
    if not path.is_file():
        return [path.name]
    with open(path, "rb") as file:
        begin = hashlib.sha256(file.read(_WHOLE)).hexdigest()
    return [path.name, status.st_size, status.st_mtime_ns if status.st_size > _WHOLE else 0, begin]


class CompileCache:
    """The graphs that an engine compiles first, for one set of facts.

    Attributes:
        found: whether they were there; None before a start.
    """

    def __init__(
        self,
        root: Path,
        facts: Mapping[str, Any],
        notice: Callable[[str], None],
        library: Path | None = None,
    ) -> None:
        """Nothing is read or written before the start.

        Args:
            root: of all keys.
            facts: see ``facts``.
            notice: is told in one line when ``root`` is not this user's alone, and another takes its place.
            library: of this process' native kernels, None where graphs have none.
        """
        self._root, self._facts, self._notice = root, facts, notice
        self._library = PLACEHOLDER if library is None else library
        self.found: bool | None = None

    @contextlib.contextmanager
    def start(self, kind: str) -> Iterator[None]:
        """Let MindSpore take the graphs that are compiled inside from the cache, or put them there.

        A cache that cannot be written is as good as none; so is one of a process that has used one already.

        Args:
            kind: says which graphs, in which order.
        """
        self.found = False
        with contextlib.ExitStack() as making:
            try:
                root = private.writable(self._root, self._notice) if usable() else None
                place = None if root is None else root / f"{key(self._facts)}-{kind}"
                known = place is not None and is_whole(place, self._facts)
                used = None if place is None else self._prepare(place, known, making)
            except OSError:
                used = None
            if root is None or used is None:
                yield
                return
            before = _hashes(used)
            ms.set_context(enable_compile_cache=True, compile_cache_path=str(used))
            try:
                with unchanged_sys():
                    yield
            finally:
                ms.set_context(enable_compile_cache=False)
            if known:
                self.found = _hashes(used) == before  # what MindSpore does not take it writes anew
                return
            # What cannot be sealed is thrown away; another process may have been first.
            with contextlib.suppress(OSError), making.pop_all():
                _copy(used, used, PLACEHOLDER)
                seal(used, self._facts)
            prune(root)

    def _prepare(self, place: Path, known: bool, making: contextlib.ExitStack) -> Path | None:
        """The directory to compile with: a copy of ``place`` if that is whole, else a new one to become it.

        None where something lies there that is not ours to replace.
        """
        if known:
            os.utime(place)
            copy = Path(making.enter_context(tempfile.TemporaryDirectory(prefix="ms_eagle-")))
            _copy(place, copy, self._library)
            return copy
        if place.is_symlink() or place.exists():
            if not _ours(place):
                return None
            shutil.rmtree(place, ignore_errors=True)
        return making.enter_context(directories.appearing(place))


def key(facts: Mapping[str, Any]) -> str:
    """The name of a set of facts: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


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


def seal(place: Path, facts: Mapping[str, Any]) -> None:
    """Write down what a directory holds and was made for, for ``is_whole``; nobody else may write there."""
    json_file.write_object(place / _SEAL, {"facts": dict(facts), "files": _hashes(place)})
    private.close(place)


def is_whole(place: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a directory is this user's and holds exactly what was sealed in it for the same facts."""
    try:
        private.check_tree(place)
        sealed = json_file.read_object(place / _SEAL)
        return sealed == {"facts": dict(facts), "files": _hashes(place)}
    except (OSError, UserError, Exposed):
        return False


def prune(root: Path, kept: int = _KEPT) -> None:
    """Remove all keys of ours but the ``kept`` ones used last; whatever else lies there stays."""
    with contextlib.suppress(OSError):
        keys = [path for path in root.iterdir() if _ours(path)]
        for path in sorted(keys, key=lambda path: path.stat().st_mtime, reverse=True)[kept:]:
            shutil.rmtree(path, ignore_errors=True)


def _ours(place: Path) -> bool:
    """Whether it is a directory of our name with our seal in it, however damaged; a link to one is not."""
    ours = _NAME.fullmatch(place.name) and not place.is_symlink()
    return bool(ours) and place.is_dir() and (place / _SEAL).is_file()


def _copy(source: Path, target: Path, library: Path | str) -> None:
    """Write what a directory holds, but for its seal, to another or to itself, with graphs of a library."""
    for path in [path for path in source.rglob("*") if path.is_file() and path.name != _SEAL]:
        data, copy = path.read_bytes(), target / path.relative_to(source)
        if path.suffix == ".mindir":
            graph = ModelProto.FromString(data)
            name_library(graph, library)
            data = graph.SerializeToString(deterministic=True)
        copy.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(copy, data)


def _hashes(place: Path) -> dict[str, object]:
    return {
        path.relative_to(place).as_posix(): files.sha256(path)
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != _SEAL
    }
