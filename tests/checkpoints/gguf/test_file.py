import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import tiny_gguf

from ms_eagle.checkpoints.gguf.file import GgufFile
from ms_eagle.errors import UserError

KEYS = {
    "llama.block_count": 7,
    "llama.eps": 1e-5,
    "flag": True,
    "text": "naïve 北京 🙂",
    "words": ["a", "", "ß"],
    "counts": [1, -2, 3],
    "scores": [0.5, -1.25],
    "flags": [True, False],
}
ARRAYS = {
    "vector": np.arange(5, dtype=np.float32),
    "matrix": np.arange(64, dtype=np.float32).reshape(2, 32),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "small.gguf", "llama", KEYS, ARRAYS)


def header(tensors: int, keys: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_values_and_places_are_those_of_the_library(small: Path) -> None:
    file, reference = GgufFile(small), gguf.GGUFReader(small)
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents(), key
            assert type(file.metadata[key]) is type(field.contents())
    assert {key: file.metadata[key] for key in KEYS if key != "llama.eps"} == {
        key: value for key, value in KEYS.items() if key != "llama.eps"
    }
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        place = file.tensors[tensor.name]
        assert (place.offset, place.nbytes, place.kind) == (
            tensor.data_offset,
            tensor.n_bytes,
            tensor.tensor_type,
        )
        assert place.shape == ARRAYS[tensor.name].shape
        assert file.rows(tensor.name).tobytes() == ARRAYS[tensor.name].tobytes()
    assert file.rows("matrix").shape == (2, 128)
    assert file.rows("vector").shape == (1, 20)


def test_version_2_is_read(small: Path) -> None:
    data = bytearray(small.read_bytes())
    data[4] = 2
    small.write_bytes(data)
    assert GgufFile(small).metadata["llama.block_count"] == 7


def test_every_truncation_is_refused(small: Path) -> None:
    data = small.read_bytes()
    file = GgufFile(small)
    last = file.tensors["matrix"].offset + file.tensors["matrix"].nbytes
    cut = small.with_name("cut.gguf")
    for length in range(last):
        cut.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"cut\.gguf is not a usable GGUF file"):
            GgufFile(cut)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=4))
def test_corrupted_bytes_end_in_a_user_error_or_a_bounded_file(
    small: Path, edits: list[tuple[int, int]]
) -> None:
    data = bytearray(small.read_bytes())
    for at, value in edits:
        data[at] = value
    spoiled = small.with_name("spoiled.gguf")
    spoiled.write_bytes(data)
    try:
        file = GgufFile(spoiled)
    except UserError:
        return
    for tensor in file.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(data)


HUGE = 1 << 61
INFO = string("t") + struct.pack("<IQIQ", 1, 32, 0, 0)  # one F32 vector of 32 values at offset 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with"),
        (b"PK\x03\x04" + bytes(60), "starts with"),
        (header(0, 0, version=1), "versions 2 and 3"),
        (header(0, 0, version=0x03000000), "big-endian"),
        (header(HUGE, 0), f"{HUGE} tensors"),
        (header(0, HUGE), f"{HUGE} metadata keys"),
        (header(0, 1, struct.pack("<Q", HUGE) + bytes(40)), "inside a field"),
        (header(0, 1, string("k") + struct.pack("<I", 99) + bytes(8)), "unknown value type 99"),
        (header(0, 1, string("k") + struct.pack("<IIQ", 9, 0, HUGE) + bytes(8)), f"{HUGE} array items"),
        (header(0, 1, string("k") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(8)), f"{HUGE} array items"),
        (header(0, 1, string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 8), "nested deeper"),
        (header(0, 1, string("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe"), "not UTF-8"),
        (header(0, 2, (string("k") + struct.pack("<IBxxx", 0, 7)[:5]) * 2 + bytes(16)), "appears twice"),
        (header(1, 0, string("t") + struct.pack("<I", 9) + bytes(90)), "9 dimensions"),
        (header(1, 0, string("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(64)), "has shape"),
        (header(1, 0, string("t") + struct.pack("<IQIQ", 1, 33, 2, 0) + bytes(64)), "blocks of 32"),
        (header(1, 0, string("t") + struct.pack("<IQIQ", 1, 32, 200, 0) + bytes(64)), "unknown type 200"),
        (header(1, 0, string("t") + struct.pack("<IQQIQ", 2, HUGE, HUGE, 0, 0) + bytes(64)), "truncated"),
        (header(1, 0, string("t") + struct.pack("<IQIQ", 1, 8, 0, 5) + bytes(128)), "misplaced"),
        (header(2, 0, INFO + INFO.replace(b"t", b"u") + bytes(512)), "misplaced"),
        (
            header(1, 1, string("general.alignment") + struct.pack("<II", 4, 3) + INFO + bytes(256)),
            "general.alignment is 3",
        ),
    ],
)
def test_contradictions_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        GgufFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent\.gguf: No such file"):
        GgufFile(tmp_path / "absent.gguf")


def test_blocked_types_keep_whole_rows(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    path = tiny_gguf.write(tmp_path / "q.gguf", "llama", {}, {"w": values}, Kind.Q8_0)
    file = GgufFile(path)
    assert file.tensors["w"].shape == (3, 64)
    assert file.rows("w").shape == (3, 2 * 34)
