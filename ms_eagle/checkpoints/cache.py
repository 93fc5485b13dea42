"""Per-user cache of converted models: each is whole or absent, whatever is killed or runs beside."""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system import directories, home
from ms_eagle.system.locks import try_lock
from ms_eagle.system.progress import Progress

MARKER = "ms_eagle_cache.json"
_WORK = ".work"
_POLL_SECONDS = 0.2
_HEAD_BYTES = 1 << 20  # of a GGUF file: its settings, and most of its vocabulary
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def default_directory() -> Path:
    """Where converted models live for this user, e.g. ``~/.cache/ms_eagle/models``."""
    return home.cache() / "models"


def safe_name(text: str) -> str:
    """``text`` as a file name: everything but letters, digits, ``.``, ``_`` and ``-`` becomes ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "model"


def fingerprint(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's head, of samples of the rest and of its end.

    It tells one model from another of the same size at the cost of a few milliseconds, where hashing the
    whole would take seconds at every start.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest.update(file.read(_HEAD_BYTES))
        for sample in range(1, _SAMPLES + 1):
            file.seek(max(0, size * sample // _SAMPLES - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def is_complete(directory: Path, identity: Mapping[str, object]) -> bool:
    """Whether ``directory`` was finished for ``identity`` and still has every file in its recorded size.

    Sizes stand in for content: hashing half a gigabyte at every start would cost seconds.
    """
    marker = _read_marker(directory)
    if marker is None or marker.get("identity") != dict(identity):
        return False
    sizes = marker.get("sizes")
    if not isinstance(sizes, dict) or not sizes:
        return False
    return sizes == _sizes(directory)


def obtain(
    root: Path,
    name: str,
    identity: Mapping[str, object],
    build: Callable[[Path, Path], None],
    progress: Progress,
) -> Path:
    """Return the directory ``root / name``, building it first when it is absent, stale or damaged.

    Builders of one name exclude each other by a file lock, which the system releases when its holder
    dies. The build happens in a directory of its own that is renamed into place at the end; leftovers of
    killed builds are removed by the next one. Other directories of the same ``identity["source"]`` are
    outdated then and removed.

    Args:
        root: the cache directory, created when missing.
        name: a ``safe_name``, different for different contents.
        identity: JSON values that the content depends on; ``source`` names where it comes from.
        build: called with an empty directory to fill and an empty scratch directory.
        progress: tells that another process is being waited for.

    Raises:
        UserError: the cache directory cannot be written, or whatever ``build`` raises.
    """
    final = root / name
    if is_complete(final, identity):
        return final
    work = root / _WORK / name
    try:
        work.mkdir(parents=True, exist_ok=True)
        with _lock(work / "lock", progress):
            if not is_complete(final, identity):
                _build(root, final, work, identity, build)
    except OSError as error:
        raise UserError(
            f"cannot prepare the model in {root}: {error.strerror or error}; "
            "free or make writable that place, or set model.source to a local Hugging Face directory"
        ) from error
    return final


def _build(
    root: Path, final: Path, work: Path, identity: Mapping[str, object], build: Callable[[Path, Path], None]
) -> None:
    with directories.appearing(final, within=work, replace=True) as model:
        workspace = model.parent
        (workspace / "scratch").mkdir()
        build(model, workspace / "scratch")
        marker = {"identity": dict(identity), "sizes": _sizes(model)}
        (model / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        for path in (*model.iterdir(), model):
            _sync(path)
        for number, old in enumerate(_outdated(root, final, identity)):
            old.rename(workspace / f"outdated-{number}")
    _sync(root)


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as file:
        if not try_lock(file.fileno()):
            with progress.steps("waiting for another process that prepares the same model"):
                while not try_lock(file.fileno()):
                    time.sleep(_POLL_SECONDS)
        yield  # closing the file releases the lock


def _outdated(root: Path, final: Path, identity: Mapping[str, object]) -> list[Path]:
    """Directories of other models of the same source."""
    outdated = []
    for directory in root.iterdir():
        marker = None if directory in (final, root / _WORK) else _read_marker(directory)
        known = marker.get("identity") if marker is not None else None
        if isinstance(known, dict) and known.get("source") == identity["source"]:
            outdated.append(directory)
    return outdated


def _read_marker(directory: Path) -> dict[str, object] | None:
    try:
        marker = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.name != MARKER}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
