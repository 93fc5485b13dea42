"""Building the native kernels: the cache, its key, and every way it can fail."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ms_eagle.kernels import build
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.kernels.library import load
from ms_eagle.system import private

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
        ("fma avx2", ("portable",)),
        ("fma avx2 f16c sse", ("avx2", "portable")),
        (f"fma f16c avx2 {AVX512}", ("avx512", "avx2", "portable")),
        (f"fma f16c avx2 {AVX512} avx512_vnni", ("vnni", "avx512", "avx2", "portable")),
        ("fma f16c avx2 avx512f avx512vl", ("avx2", "portable")),
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


def left(cache):
    """What lies in a cache beside its lock."""
    return [path.name for path in cache.iterdir() if path.name != "lock"]


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
    assert left(tmp_path / "cache") == []


def test_a_full_disk_is_called_one(tmp_path, monkeypatch, compiler):
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'ld returned 1' >&2; exit 1; }\n")
    with pytest.raises(NativeUnavailable, match=r"cannot write the compiled kernels to .*: No space left"):
        build.build("portable", tmp_path / "cache", str(compiler))


def test_compiler_that_cannot_run(tmp_path):
    with pytest.raises(NativeUnavailable, match="could not be run"):
        build.build("portable", tmp_path / "cache", str(tmp_path / "absent"))


@pytest.mark.parametrize("fault", ["a file", "read-only", "exposed", "a link"])
def test_a_cache_that_cannot_serve_gives_way_to_a_temporary_directory(tmp_path, monkeypatch, compiler, fault):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache, told = tmp_path / "home" / "kernels", []
    cache.mkdir(parents=True)
    if fault == "a file":
        cache.rmdir()
        cache.write_text("")
    if fault == "read-only":
        monkeypatch.setattr(private.os, "access", lambda path, mode: path != cache)
    if fault == "exposed":
        cache.chmod(0o777)
    if fault == "a link":
        cache.rename(tmp_path / "elsewhere")
        cache.symlink_to(tmp_path / "elsewhere")
    first = build.build("portable", cache, str(compiler), notice=told.append)
    assert first.parents[2].parent == tmp_path
    assert first.parents[2].name.startswith("ms_eagle-")
    assert len(told) == 1 + (fault in ("exposed", "a link"))
    assert "building" in told[-1]  # the last word before the wait
    assert build.build("portable", cache, str(compiler)) == first
    assert runs(compiler) == 1


def test_a_built_library_needs_neither_its_compiler_nor_a_writable_cache(tmp_path, monkeypatch, compiler):
    first = build.build("portable", tmp_path / "cache", str(compiler))
    monkeypatch.setattr(private.os, "access", lambda *_: False)
    assert build.build("portable", tmp_path / "cache", str(compiler)) == first
    monkeypatch.setenv("PATH", "")
    assert build.build("portable", tmp_path / "cache") == first
    first.write_text("damaged")
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler"):
        build.build("portable", tmp_path / "cache")


def test_what_is_in_the_way_and_not_ours_stays(tmp_path, compiler):
    first = build.build("portable", tmp_path / "cache", str(compiler))
    (first.parent / "record.json").unlink()
    with pytest.raises(NativeUnavailable, match="in the way"):
        build.build("portable", tmp_path / "cache", str(compiler))
    assert first.exists()


def test_builds_at_once_compile_once(tmp_path, compiler):
    compiler.write_text(compiler.read_text() + "sleep 0.2\n")
    code = (
        "import sys; from pathlib import Path; from ms_eagle.kernels.build import build\n"
        "print(build('portable', Path(sys.argv[1]), sys.argv[2]))\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "cache"), str(compiler)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    printed = {each.communicate(timeout=200)[0] for each in started}
    assert [each.returncode for each in started] == [0, 0, 0]
    assert len(printed) == len(left(tmp_path / "cache")) == runs(compiler) == 1


def test_a_killed_build_leaves_nothing_for_long(tmp_path, compiler):
    script = compiler.read_text()
    compiler.write_text(script + f'echo > "$TMPDIR/cc.s"; touch {tmp_path}/begun; sleep 60\n')
    code = "import sys; from pathlib import Path; from ms_eagle.kernels.build import build\n"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{code}build('portable', Path(sys.argv[1]), sys.argv[2])",
            tmp_path / "cache",
            compiler,
        ],
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(left(tmp_path / "cache")) == 1
    compiler.write_text(script)
    library = build.build("avx2", tmp_path / "cache", str(compiler))
    assert left(tmp_path / "cache") == [library.parent.name]


def test_damaged_library_is_built_again(tmp_path, compiler):
    cache = tmp_path / "cache"
    path = build.build("portable", cache, str(compiler))
    whole = path.read_bytes()
    for count, damaged in enumerate((b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]), 2):
        path.write_bytes(damaged)
        assert build.build("portable", cache, str(compiler)) == path
        assert runs(compiler) == count


def test_a_library_that_does_not_load_is_built_once_more(tmp_path, monkeypatch, compiler):
    monkeypatch.setattr(build, "find_compiler", lambda: str(compiler))
    with pytest.raises(NativeUnavailable, match="cannot be loaded"):
        load(1, "portable", tmp_path / "cache")
    assert runs(compiler) == 2


def test_compiles_without_warnings(tmp_path):
    assert build.build("portable", tmp_path, extra=("-Werror",)).is_file()
