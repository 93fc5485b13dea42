"""The native kernels through ctypes: every check of native_step_cases, at every level that runs here."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native_cases, native_code_cases, native_step_cases

from ms_eagle.kernels import build
from ms_eagle.kernels.formats import codes
from ms_eagle.kernels.library import ABSENT, Library, NativeError, available_cores, load
from ms_eagle.models.weight import Weight
from ms_eagle.paths import ROOT

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", params=build.usable_levels())
def library(request):
    """One build per level, in the user's cache as in real use."""
    return load(2, request.param)


@pytest.mark.parametrize("name", native_step_cases.CHECKS)
def test_case(name, library):
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(seeds)
    def holds(seed):
        native_step_cases.CHECKS[name](library, np.random.default_rng(seed))

    holds()


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        ("RmsNormRows", lambda a: a[:-1], "got 3 tensors; expected 4"),
        (
            "RmsNormRows",
            lambda a: [a[0].astype(np.float16), *a[1:]],
            "x has dtype float16; expected float32",
        ),
        (
            "RmsNormRows",
            lambda a: [a[0], a[1][:3].copy(), *a[2:]],
            r"weight has shape \[3\]; expected \[4\]",
        ),
        ("RmsNormRows", lambda a: [a[0][0], *a[1:]], "x has shape .*; expected at least 3 dimensions"),
        ("RmsNormRows", lambda a: [a[0][:, :0], *a[1:]], "impossible shape"),
    ],
)
def test_refusals_say_what_was_found_and_expected(library, op, change, message):
    good = [
        np.ones((1, 2, 4), np.float32),
        np.ones(4, np.float32),
        np.ones(1, np.float32),
        np.ones((1, 2, 4), np.float32),
    ]
    library.call(op, good, [])
    with pytest.raises(NativeError, match=f"{op}: .*{message}"):
        library.call(op, [np.ascontiguousarray(array) for array in change(good)], [])


@pytest.mark.parametrize(
    ("name", "value"), [("positions", -1), ("positions", 24), ("slots", 24), ("slots", -1), ("visible", 24)]
)
def test_indices_out_of_range_are_refused_before_anything_is_written(library, name, value):
    rng = np.random.default_rng(0)
    layer = native_cases.Layer(library, native_cases.Sizes(1, 2, 20, 12, 2, 2, 32, 24), rng)
    x = native_cases.normal(rng, 1, 2, 20)
    arrays = dict(
        positions=np.array([[0, 1]], np.int32),
        slots=np.array([[0, 1]], np.int32),
        visible=native_cases.visible_lists([[(1, ()), (1, (1,))]], 2),
    )
    keys, values = (np.zeros((1, 2, 24, 32), np.float32) for _ in range(2))
    layer.run(x, **arrays, keys=keys, values=values)
    arrays[name].flat[6 if name == "visible" else 1] = value
    keys[:], values[:] = 0, 0
    with pytest.raises(NativeError, match=f"AttentionBlock: {name} holds {value}; expected 0..23"):
        layer.run(x, **arrays, keys=keys, values=values)
    assert not keys.any()
    assert not values.any()


def test_levels_agree_on_the_packed_format():
    rng = np.random.default_rng(1)
    weight, pair = native_cases.normal(rng, 70, 19), native_cases.normal(rng, 70, 19)
    libraries = [load(2, level) for level in build.usable_levels()]
    packed = [each.pack(weight) for each in libraries]
    assert packed[0].shape == (3, 19, 32)
    for j in range(96):
        want = weight[j] if j < 70 else np.zeros(19)
        np.testing.assert_array_equal(packed[0][j // 32, :, j % 32], want)
    both = libraries[0].pack(weight, pair)
    np.testing.assert_array_equal(both[0::2], packed[0])
    np.testing.assert_array_equal(both[1::2], libraries[0].pack(pair))
    for other in packed:
        assert other.tobytes() == packed[0].tobytes()


@pytest.mark.parametrize("kind", native_code_cases.FORMATS)
def test_levels_agree_on_codes_to_the_bit(kind):
    """Sums over one group are exact but for a last rounding, which every instruction set does alike."""
    rng = np.random.default_rng(2)
    weight = kind(Weight.of(native_cases.normal(rng, 70, 32)))
    x = native_cases.normal(rng, 1, 9, 32)
    results = []
    for level in build.usable_levels():
        library, y = load(2, level), np.empty((1, 9, 70), np.float32)
        packed = library.pack_codes(codes(weight))
        library.call("LinearRows", (x, ABSENT, packed, ABSENT, native_cases.EPS), (y,))
        results.append((packed, y))
    for packed, y in results:
        assert packed.tobytes() == results[0][0].tobytes()
        if weight.minima is None:
            assert y.tobytes() == results[0][1].tobytes()
        np.testing.assert_allclose(y, results[0][1], rtol=1e-5, atol=1e-5)


def test_codes_of_broken_groups_are_refused(library):
    x, y = np.ones((1, 1, 40), np.float32), np.empty((1, 1, 8), np.float32)
    for width in (34, 33):
        packed = np.zeros((1, 40, width), np.uint8)
        with pytest.raises(NativeError, match="weights holds codes of 40 inputs"):
            library.call("LinearRows", (x, ABSENT, packed, ABSENT, native_cases.EPS), (y,))


def test_threads_of_the_process_call_at_once():
    library = load(3)
    checks = (native_cases.check_linear, native_cases.check_attention_against_numpy)
    failures = []

    def work(seed):
        try:
            for i in range(6):
                checks[i % 2](library, np.random.default_rng(100 * seed + i))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library.set_threads(2)
    assert not failures


def test_a_forked_child_can_work():
    code = (
        "import os, sys; import numpy as np; from support import native_cases\n"
        "from ms_eagle.kernels.library import load\n"
        "library = load(2); native_cases.check_linear(library, np.random.default_rng(0))\n"
        "child = os.fork()\n"
        "native_cases.check_linear(library, np.random.default_rng(1))\n"
        "if child == 0: os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tests", timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_default_threads_are_the_cores_of_the_process():
    assert load().threads == available_cores() >= 1
    load(2)


def sanitized(level, tmp_path):
    """Environment and library of a build with AddressSanitizer and UndefinedBehaviorSanitizer."""
    compiler = build.find_compiler()
    runtime = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(path).is_absolute() for path in runtime):
        pytest.skip("the compiler has no sanitizer runtime")
    environment = dict(
        LD_PRELOAD=" ".join(runtime),
        ASAN_OPTIONS="detect_leaks=0",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        HOME=str(tmp_path),
    )
    return environment, build.build(level, extra=build.SANITIZE)


@pytest.mark.parametrize("level", build.usable_levels())
def test_sanitized_build_passes_every_case(level, tmp_path):
    environment, path = sanitized(level, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "support.native_step_cases", str(path), "3"],
        cwd=ROOT / "tests",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == [f"{name} ok" for name in native_step_cases.CHECKS]


def test_sanitized_build_would_notice_a_bad_read(tmp_path):
    """The test above can fail: a matrix smaller than it is said to be ends the process with a report."""
    environment, path = sanitized("portable", tmp_path)
    code = (
        "import ctypes, sys, numpy as np; from ms_eagle.kernels.library import Library\n"
        "library = Library(sys.argv[1]); floats = ctypes.POINTER(ctypes.c_float)\n"
        "weight, room = np.zeros((4, 8), np.float32), np.zeros((1, 8, 32), np.float32)\n"
        "pack = lambda out: library._functions.ms_eagle_pack(\n"
        "    weight.ctypes.data_as(floats), out, 8, room.ctypes.data_as(floats), 1)\n"
        "assert pack(4) == 0; pack(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


def test_library_without_our_functions_is_refused(tmp_path):
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"not a library")
    with pytest.raises(build.NativeUnavailable, match="cannot be loaded"):
        Library(wrong)


def test_settling_memory_keeps_its_content():
    library = load(2)
    array = np.arange(3 << 20, dtype=np.float32)
    before = array.tobytes()
    library.settle(array)
    library.settle(array[5:9])
    assert array.tobytes() == before


def test_stream_reads_every_float_once():
    library = load(2)
    for size in (1, 15, 128, 65536, 65537, 200001):
        array = np.arange(size, dtype=np.float32) % 7
        assert library.stream(array) == array.sum(dtype=np.float64)
