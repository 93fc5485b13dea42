"""Compiling the native CPU kernels: once per machine, on first use, into the per-user cache."""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ms_eagle.system import home
from ms_eagle.system.files import replacing

SOURCES = Path(__file__).parent / "cpu"
_TIMEOUT_SECONDS = 600.0

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
    raise NativeUnavailable("no C++ compiler (g++, c++ or clang++) on the search path")


def source_files(directory: Path = SOURCES) -> list[Path]:
    """The files that a library is made of."""
    return sorted(path for path in directory.iterdir() if path.suffix in (".cc", ".h"))


def build(
    level: str | None = None,
    directory: Path | None = None,
    compiler: str | None = None,
    extra: Sequence[str] = (),
    sources: Path = SOURCES,
) -> Path:
    """Return the shared library for ``level``, compiling it first unless the cache has it.

    The file's name holds a hash of the sources, the compiler's version, the flags and the machine, so that
    no change of any of them meets an outdated library. Builds that run at once each finish their own file;
    the last rename wins, and every reader sees a whole library.

    Args:
        level: a key of ``LEVELS``; None is the best that this machine can run.
        directory: the cache; None is ``default_directory()``.
        compiler: None is ``find_compiler()``.
        extra: further compiler flags, such as ``SANITIZE``.
        sources: the directory of the sources.

    Raises:
        NativeUnavailable: no compiler, a compilation that fails, or a cache that cannot be written.
    """
    level = usable_levels()[0] if level is None else level
    compiler = find_compiler() if compiler is None else compiler
    directory = default_directory() if directory is None else directory
    flags = (*_FLAGS, *_STAY_LOADED, *LEVELS[level], *extra)
    key = hashlib.sha256()
    for path in source_files(sources):
        content = path.read_bytes()
        key.update(f"{path.name} {len(content)}\n".encode() + content)
    key.update("\n".join((_version(compiler), platform.machine(), *flags)).encode())
    library = directory / f"ms_eagle_{level}_{key.hexdigest()[:24]}.so"
    if library.is_file():
        return library
    try:
        with replacing(library) as temporary:
            units = (str(path) for path in source_files(sources) if path.suffix == ".cc")
            _run((compiler, *flags, *units, "-o", str(temporary)))
    except OSError as error:
        raise NativeUnavailable(
            f"cannot write the compiled kernels to {directory}: {error.strerror or error}"
        ) from error
    return library


def _version(compiler: str) -> str:
    return _run((compiler, "--version")).partition("\n")[0]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the C++ compiler {command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        said = lines[0].strip() if lines else "no message"
        raise NativeUnavailable(f"{command[0]} failed with status {done.returncode}: {said}")
    return done.stdout
