import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ms_eagle.checkpoints.safetensors_file import read_header, write_float32
from ms_eagle.errors import UserError
from ms_eagle.system.files import sha256

ARRAYS = {
    "b.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a": np.array(2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "c": np.arange(7, dtype=np.float32),
}


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_written_files_are_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    shapes = {name: array.shape for name, array in ARRAYS.items()}
    digest = write_float32(path, shapes, lambda name: np.array_split(ARRAYS[name].reshape(-1), 2))
    found = load_file(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert digest == sha256(path)
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert all(place.offset % 4 == 0 for place in read_header(path).values())


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(ARRAYS, path, metadata={"who": "me"})
    data = path.read_bytes()
    found = read_header(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        place = found[name]
        assert (place.dtype, place.shape) == ("F32", array.shape)
        assert data[place.offset : place.offset + place.nbytes] == array.tobytes()


def test_the_other_names_of_a_tensor_are_found(tmp_path: Path) -> None:
    name = next(iter(ARRAYS))
    save_file(ARRAYS, tmp_path / "w", metadata={"twin": name, name: "twin", "who": "me", "format": "pt"})
    found = read_header(tmp_path / "w")
    assert found.keys() == {*ARRAYS, "twin"}
    assert found["twin"] == found[name]


@pytest.mark.parametrize(
    "pieces", [[np.zeros(3, np.float32)], [np.zeros(5, np.float32)], [np.zeros(4, np.float64)]]
)
def test_pieces_must_add_up(tmp_path: Path, pieces: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_float32(tmp_path / "w", {"x": (4,)}, lambda name: pieces)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(ARRAYS, path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"w\.safetensors is not a usable safetensors file"):
            read_header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), min_size=1, max_size=3))
def test_corruption_ends_in_a_user_error_or_bounded_places(
    tmp_path: Path, edits: list[tuple[int, int]]
) -> None:
    path = tmp_path / "w.safetensors"
    save_file(ARRAYS, path)
    data = bytearray(path.read_bytes())
    for at, value in edits:
        data[at] = value
    path.write_bytes(data)
    try:
        found = read_header(path)
    except UserError:
        return
    assert all(place.offset + place.nbytes <= len(data) for place in found.values())


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{nonsense", b"", "header is not JSON"),
        (b"\xff\xff", b"", "header is not JSON"),
        (b"[" * 100_000, b"", "header is not JSON"),
        ([1], b"", "not a JSON object"),
        ({"x": 5}, b"", "entry of 'x' is malformed"),
        ({"x": entry(shape=[-2])}, bytes(8), "malformed"),
        ({"x": entry(shape=[2.0])}, bytes(8), "malformed"),
        ({"x": entry(offsets=[0, 8, 9])}, bytes(8), "malformed"),
        ({"x": entry(dtype="Q4")}, bytes(8), "unknown dtype 'Q4'"),
        ({"x": entry(dtype=["F32"])}, bytes(8), "malformed"),
        ({"x": entry(shape=[10**18] * 33)}, bytes(8), "malformed"),
        ({"x": entry(shape=[10**20, 0])}, bytes(8), "malformed"),
        (b'{"x":%b}' % (b"9" * 5000), bytes(8), "header is not JSON"),
        ({"x": entry(shape=[3])}, bytes(8), r"has 8 bytes, not F32 of shape \[3\]"),
        ({"x": entry(offsets=[8, 0], shape=[0])}, bytes(8), "has -8 bytes"),
        ({"x": entry(offsets=[4, 12])}, bytes(12), "starts at byte"),
        ({"x": entry(), "y": entry()}, bytes(8), "starts at byte"),
        ({"x": entry()}, bytes(9), "1 bytes after the last tensor"),
        (b'{"x":%b,"x":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8), "appears twice"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_header(write(tmp_path / "bad", header, data))


def test_a_huge_header_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes((1 << 62).to_bytes(8, "little") + bytes(100))
    with pytest.raises(UserError, match="end inside the header"):
        read_header(tmp_path / "bad")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        read_header(tmp_path / "absent")
