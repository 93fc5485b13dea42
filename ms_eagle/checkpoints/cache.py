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
from ms_eagle.system import directories, files, home, json_file, private
from ms_eagle.system.locks import try_lock
from ms_eagle.system.private import Exposed
from ms_eagle.system.progress import Progress

MARKER = "ms_eagle_cache.json"
_WORK, _SEEN = ".work", "seen.json"
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


def is_complete(directory: Path, identity: Mapping[str, object], seen: Path) -> bool:
    """Whether ``directory`` was finished for ``identity`` and its files still hold what was written.

    A file that the file system calls the same one as at its last check is compared by ``fingerprint``, any
    other by the hash of its whole content: half a gigabyte of that at every start would cost a second.

    Args:
        directory: of a model.
        identity: what it should have been made for.
        seen: the file that remembers what passed; one that cannot be written means hashing again next time.

    Raises:
        Exposed: somebody else can have written there.
    """
    marker = _read_object(directory / MARKER)
    hashes, samples = marker.get("sha256"), marker.get("samples")
    if marker.get("identity") != dict(identity) or not hashes or not isinstance(samples, dict):
        return False
    private.check(directory)
    states, passed = {}, _read_object(seen)
    try:
        for name, expected in hashes.items():
            path = directory / name
            private.check(path)
            states[name] = _state(path)
            if samples[name] != fingerprint(path):
                return False
            if passed.get(name) != states[name] and expected != files.sha256(path):
                return False
    except (OSError, KeyError):
        return False
    if states != passed:
        with contextlib.suppress(OSError):
            json_file.write_object(seen, states)
    return True


def verify(root: Path) -> None:
    """Let every model below ``root`` be hashed whole when it is used next.

    Raises:
        UserError: what is remembered of former checks cannot be removed.
    """
    try:
        for seen in root.glob(f"{_WORK}/*/{_SEEN}"):
            private.check(seen.parents[1])
            private.check(seen.parent)
            seen.unlink()
    except (OSError, Exposed) as error:
        raise UserError(f"--verify: cannot forget what was checked in {root}: {error}") from error


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
    killed builds are removed by the next one. Other directories of the same ``source`` and ``form`` are
    outdated then and removed.

    Args:
        root: the cache directory, created when missing.
        name: a ``safe_name``, different for different contents.
        identity: JSON values that the content depends on; ``source`` names where it comes from, ``form``
            what was made of it.
        build: called with an empty directory to fill and an empty scratch directory.
        progress: tells that another process is being waited for.

    Raises:
        UserError: the cache directory cannot be written, or whatever ``build`` raises.
    """
    root = _private(root, progress)
    final, work = root / name, root / _WORK / name
    try:
        for place in (work.parent, work):
            if os.path.lexists(place):
                private.check(place)
        try:
            ready = is_complete(final, identity, work / _SEEN)
        except Exposed as error:
            progress.note(f"{error}; it is prepared anew")
            ready = False
        if ready:
            return final
        private.make(work)
        with _lock(work / "lock", progress):
            with contextlib.suppress(Exposed):
                ready = is_complete(final, identity, work / _SEEN)
            if not ready:
                _build(root, final, work, identity, build)
    except Exposed as error:
        raise UserError(f"cannot use the model in {root}: {error}") from error
    except OSError as error:
        raise UserError(
            f"cannot prepare the model in {root}: {error.strerror or error}; "
            "free or make writable that place, or set model.source to a local Hugging Face directory"
        ) from error
    return final


def _build(
    root: Path, final: Path, work: Path, identity: Mapping[str, object], build: Callable[[Path, Path], None]
) -> None:
    if final.is_symlink() or (final.exists() and not (final / MARKER).is_file()):
        raise UserError(f"{final} is in the way of a converted model, and not one: move it elsewhere")
    with directories.appearing(final, within=work, replace=True) as model:
        workspace = model.parent
        (workspace / "scratch").mkdir()
        build(model, workspace / "scratch")
        private.close(model)
        paths = [path for path in sorted(model.iterdir()) if path.is_file()]
        marker = {
            "identity": dict(identity),
            "sizes": _sizes(model),
            "sha256": {path.name: files.sha256(path) for path in paths},
            "samples": {path.name: fingerprint(path) for path in paths},
        }
        (model / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        for path in (*model.iterdir(), model):
            _sync(path)
        for number, old in enumerate(_outdated(root, final, identity)):
            old.rename(workspace / f"outdated-{number}")
        states = {path.name: _state(path) for path in paths}
    json_file.write_object(work / _SEEN, states)
    _sync(root)


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as file:
        if not try_lock(file.fileno()):
            with progress.steps("waiting for another process that prepares the same model"):
                while not try_lock(file.fileno()):
                    time.sleep(_POLL_SECONDS)
        yield  # closing the file releases the lock


def _private(root: Path, progress: Progress) -> Path:
    """``root``, or a place of this user's where somebody else can have written to it."""
    try:
        if root.is_symlink() or root.exists():
            private.check(root)
        return root
    except (Exposed, OSError) as error:
        own = default_directory()
        if isinstance(error, OSError) or root == own:
            own = private.temporary() / own.name
        progress.note(f"{error}; {own} is used instead")
        return own


def _state(path: Path) -> list[int]:
    """By what a file system tells one file from another, or from the same one before a change."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _outdated(root: Path, final: Path, identity: Mapping[str, object]) -> list[Path]:
    """Directories of other models of the same source; a link to one is none."""
    outdated = []
    for directory in root.iterdir():
        ours = directory not in (final, root / _WORK) and not directory.is_symlink()
        known = _read_object(directory / MARKER).get("identity") if ours else None
        if isinstance(known, dict) and all(known.get(key) == identity.get(key) for key in ("source", "form")):
            outdated.append(directory)
    return outdated


def _read_object(path: Path) -> dict[str, object]:
    """A JSON object, empty where there is none to read."""
    try:
        return json_file.read_object(path)
    except UserError:
        return {}


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.name != MARKER}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
