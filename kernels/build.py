"""Compiling the native CPU kernels: once per machine, on first use, into the per-user cache.

A built library is a directory of its own: the library, and a record of its hash, which is compared whenever
the library is taken up. It is loaded as code, so it must be this user's alone, see ``system.private``.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system import directories, files, home, json_file, private
from ms_eagle.system.locks import FileLock
from ms_eagle.system.private import Exposed

SOURCES = Path(__file__).parent / "cpu"
_TIMEOUT_SECONDS = 600.0
_ROOM = 1 << 24  # bytes of disk; a library and what its compilation leaves for a moment take no more
_LIBRARY, _RECORD = "kernels.so", "record.json"
_OPERATOR = re.compile(r"^MS_EAGLE_OP\((\w+)\)", re.MULTILINE)
_NAME = re.compile("ms_eagle_[a-z0-9]+_[0-9a-f]{24}_[0-9a-f]{8}")

# -ffp-contract=off: the sources spell out every fused multiply-add, so that results do not hang on inlining.
_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread"),
    *("-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"),
)

# MindSpore closes the library of an op it drops, while the pool's threads may still be in its code.
_STAY_LOADED = ("-Wl,-z,nodelete",) if platform.system() == "Linux" else ()

LEVELS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"),
    "avx2": ("-mavx2", "-mfma"),
    "portable": (),
}
"""Instruction sets, best first, and the flags that choose them; the portable one is NEON on ARM."""

_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"},
    "avx2": {"avx2", "fma"},
    "portable": set(),
}

SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-g",
    "-fno-omit-frame-pointer",
)
"""Extra flags of a build that reports memory errors and undefined behaviour."""


class NativeUnavailable(Exception):
    """The native kernels cannot be had here; the text is one line that says why."""


def usable_levels(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The levels this machine can run, best first; ``portable`` is always among them."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    flags = set(line.partition(":")[2].split())
    return tuple(level for level in LEVELS if _NEEDED[level] <= flags)


def default_directory() -> Path:
    """Where built libraries live for this user, e.g. ``~/.cache/ms_eagle/kernels``."""
    return home.cache() / "kernels"


def find_compiler() -> str:
    """Path of a C++ compiler.

    Raises:
        NativeUnavailable: there is none on the search path.
    """
    for name in ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise NativeUnavailable(
        "no C++ compiler (g++, c++ or clang++) on the search path: install one, such as with apt install g++"
    )


def source_files(directory: Path = SOURCES) -> list[Path]:
    """The files that a library is made of."""
    return sorted(path for path in directory.iterdir() if path.suffix in (".cc", ".h"))


def operator_names(directory: Path = SOURCES) -> frozenset[str]:
    """The operators that the sources define."""
    texts = (path.read_text(encoding="utf-8") for path in source_files(directory) if path.suffix == ".cc")
    return frozenset(name for text in texts for name in _OPERATOR.findall(text))


def build(
    level: str | None = None,
    directory: Path | None = None,
    compiler: str | None = None,
    extra: Sequence[str] = (),
    sources: Path = SOURCES,
    notice: Callable[[str], None] = lambda line: None,
) -> Path:
    """Return the shared library for ``level``, compiling it first unless the cache has it whole.

    Its name holds a hash of the sources, the flags and the machine, and one of the compiler's version: no
    change of any of them meets an outdated library. Without a compiler, one of any version will do. One
    process builds at a time. A cache that cannot be written, or that is not this user's alone, gives way to a
    temporary directory.

    Args:
        level: a key of ``LEVELS``; None is the best that this machine can run.
        directory: the cache; None is ``default_directory()``.
        compiler: None is ``find_compiler()``.
        extra: further compiler flags, such as ``SANITIZE``.
        sources: the directory of the sources.
        notice: is told in one line of a cache that is not this user's alone, and that a build begins.

    Raises:
        NativeUnavailable: no compiler and no library, a compilation that fails, or no place to write it to.
    """
    level = usable_levels()[0] if level is None else level
    directory = default_directory() if directory is None else directory
    flags = (*_FLAGS, *_STAY_LOADED, *LEVELS[level], *extra)
    stem = f"ms_eagle_{level}_{_recipe(flags, sources)}"
    try:
        compiler = find_compiler() if compiler is None else compiler
        version = _version(compiler)
    except NativeUnavailable:
        for place in (directory, private.temporary() / directory.name):
            with contextlib.suppress(StopIteration, OSError, Exposed):
                return next(_libraries(place, f"{stem}_*"))
        raise
    name = f"{stem}_{hashlib.sha256(version.encode()).hexdigest()[:8]}"
    with contextlib.suppress(StopIteration, OSError, Exposed):
        return next(_libraries(directory, name))
    try:
        place = private.writable(directory, notice)
        with _building(place):
            library = next(_libraries(place, name), None)  # another process may have been first
            if library is None:
                notice("building the native kernels for this processor, once; this takes about half a minute")
                library = _compile(place / name, (compiler, *flags), sources)
            return library
    except (OSError, Exposed, UserError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NativeUnavailable(f"cannot write the compiled kernels to {directory}: {reason}") from error


def discard(library: Path) -> None:
    """Remove a library that is of no use, to have it built again."""
    if _ours(library.parent):
        shutil.rmtree(library.parent, ignore_errors=True)


def _recipe(flags: Sequence[str], sources: Path) -> str:
    digest = hashlib.sha256()
    for path in source_files(sources):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    digest.update("\n".join((platform.machine(), *flags)).encode())
    return digest.hexdigest()[:24]


def _libraries(directory: Path, pattern: str) -> Iterator[Path]:
    """The libraries of these names that are whole and this user's alone.

    Raises:
        OSError, Exposed: ``directory`` itself is missing, or not this user's alone.
    """
    private.check(directory)
    for built in directory.glob(pattern):
        with contextlib.suppress(OSError, UserError, Exposed):
            private.check_tree(built)
            if json_file.read_object(built / _RECORD).get("sha256") == files.sha256(built / _LIBRARY):
                yield built / _LIBRARY


@contextlib.contextmanager
def _building(place: Path) -> Iterator[None]:
    """No other process builds here meanwhile; where there are no locks, each finishes its own directory."""
    lock = FileLock(place / "lock")
    with contextlib.suppress(OSError):
        lock.acquire(_TIMEOUT_SECONDS, lambda line: None)
    try:
        yield
    finally:
        lock.release()


def _compile(final: Path, command: Sequence[str], sources: Path) -> Path:
    if (final.is_symlink() or final.exists()) and not _ours(final):
        raise NativeUnavailable(f"{final} is in the way of the compiled kernels, and not ours: remove it")
    with directories.appearing(final, replace=True) as new:
        units = (str(path) for path in source_files(sources) if path.suffix == ".cc")
        _run((*command, *units, "-o", str(new / _LIBRARY)), new.parent)
        json_file.write_object(new / _RECORD, {"sha256": files.sha256(new / _LIBRARY)})
        private.close(new)
    return final / _LIBRARY


def _ours(built: Path) -> bool:
    """Whether it is a directory of our name with our record in it, however damaged; a link to one is not."""
    ours = _NAME.fullmatch(built.name) and not built.is_symlink()
    return bool(ours) and (built / _RECORD).is_file()


def _version(compiler: str) -> str:
    return _run((compiler, "--version")).partition("\n")[0]


def _run(command: Sequence[str], workspace: Path | None = None) -> str:
    """What a compiler prints; its temporary files go to ``workspace``, which goes away whoever is killed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            errors="replace",
            env=None if workspace is None else {**os.environ, "TMPDIR": str(workspace)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the C++ compiler {command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        if workspace is not None and shutil.disk_usage(workspace).free < _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # compilers and linkers say it in riddles
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        said = lines[0].strip() if lines else "no message"
        raise NativeUnavailable(f"{command[0]} failed with status {done.returncode}: {said}")
    return done.stdout
