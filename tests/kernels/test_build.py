"""Building the native kernels: the cache, its key, and every way it can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from ms_eagle.kernels import build
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.kernels.library import load

AVX512 = "avx512f avx512bw avx512dq avx512vl"


@pytest.fixture
def compiler(tmp_path):
    """A stand-in compiler that writes its arguments and counts its runs."""
    path = tmp_path / "compiler"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then cat "$0.version"; exit 0; fi\n'
        'echo run >> "$0.log"\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo "$@" > "$2"\n'
    )
    path.chmod(0o755)
    (tmp_path / "compiler.version").write_text("compiler 1.0\n")
    return path


def runs(compiler):
    log = Path(f"{compiler}.log")
    return len(log.read_text().split()) if log.exists() else 0


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("", ("portable",)),
        ("avx2", ("portable",)),
        ("fma avx2 sse", ("avx2", "portable")),
        (f"fma avx2 {AVX512}", ("avx512", "avx2", "portable")),
        ("fma avx2 avx512f avx512vl", ("avx2", "portable")),
    ],
)
def test_levels_follow_the_processor(tmp_path, flags, levels):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t: none\n")
    assert build.usable_levels(cpuinfo) == levels


def test_no_cpuinfo_means_portable(tmp_path):
    assert build.usable_levels(tmp_path / "absent") == ("portable",)


def test_compiles_once_and_again_for_another_level_flag_or_compiler_version(tmp_path, compiler):
    cache = tmp_path / "cache"
    first = build.build("portable", cache, str(compiler))
    assert build.build("portable", cache, str(compiler)) == first
    assert runs(compiler) == 1
    others = {
        build.build("avx2", cache, str(compiler)),
        build.build("portable", cache, str(compiler), ("-g",)),
    }
    (tmp_path / "compiler.version").write_text("compiler 2.0\n")
    others.add(build.build("portable", cache, str(compiler)))
    assert len(others - {first}) == 3
    assert runs(compiler) == 4


def test_compiles_again_when_a_source_changes(tmp_path, compiler):
    sources = tmp_path / "cpu"
    sources.mkdir()
    (sources / "a.cc").write_text("int a;")
    (sources / "a.h").write_text("extern int a;")
    first = build.build("portable", tmp_path / "cache", str(compiler), sources=sources)
    (sources / "a.h").write_text("extern int  a;")
    assert build.build("portable", tmp_path / "cache", str(compiler), sources=sources) != first


def test_no_compiler_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler"):
        build.find_compiler()


def test_failed_build_says_the_first_error_and_leaves_nothing(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo 1; exit 0; fi\n'
        "echo 'a.cc:1: note: hm' >&2; echo 'a.cc:2: error: no vectors here' >&2; exit 1\n"
    )
    compiler.chmod(0o755)
    with pytest.raises(NativeUnavailable, match=r"status 1: a\.cc:2: error: no vectors here") as raised:
        build.build("portable", tmp_path / "cache", str(compiler))
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_compiler_that_cannot_run(tmp_path):
    with pytest.raises(NativeUnavailable, match="could not be run"):
        build.build("portable", tmp_path / "cache", str(tmp_path / "absent"))


def test_cache_that_cannot_be_written(tmp_path, compiler):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(NativeUnavailable, match="cannot write the compiled kernels"):
        build.build("portable", blocked / "cache", str(compiler))


def test_builds_at_once_all_end_with_a_whole_library(tmp_path):
    code = (
        "import sys, numpy as np; from pathlib import Path; from ms_eagle.kernels.library import load\n"
        "library = load(1, 'portable', Path(sys.argv[1]))\n"
        "print(library.pack(np.eye(3)).sum(), library.path)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = {each.communicate(timeout=200)[0] for each in started}
    assert [each.returncode for each in started] == [0, 0, 0]
    assert len(said) == 1
    assert len(list(tmp_path.iterdir())) == 1
    assert next(iter(said)).startswith("3.0 ")


def test_damaged_library_is_built_again(tmp_path):
    path = build.build("portable", tmp_path)
    path.write_bytes(b"damaged")
    assert load(1, "portable", tmp_path).path == path
    assert path.stat().st_size > 10000


def test_compiles_without_warnings(tmp_path):
    assert build.build("portable", tmp_path, extra=("-Werror",)).is_file()
