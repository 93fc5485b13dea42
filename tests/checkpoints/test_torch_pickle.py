"""The allow-list reader against real torch.save files and against hand-made hostile pickles."""

import collections
import pickle
import struct
import time
import zipfile

import numpy as np
import pytest
import torch

from ms_eagle.checkpoints.torch_pickle import TorchFile
from ms_eagle.errors import UserError


def _refused(path):
    with pytest.raises(UserError) as caught:
        TorchFile(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def _archive(path, program, entries=None, root="archive/"):
    """A torch-style zip around a hand-made pickle program."""
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(f"{root}data.pkl", program)
        for name, data in (entries or {}).items():
            target.writestr(f"{root}{name}", data)
    return path


def _tensor(storage=b"ctorch\nFloatStorage\n", key="0", items=6, offset=0, shape=(2, 3), strides=(3, 1)):
    """The instructions that rebuild one tensor, as torch writes them."""

    def number(n):
        return b"J" + struct.pack("<i", n)

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(values):
        return b"(" + b"".join(map(number, values)) + b"t"

    reference = b"(" + text("storage") + storage + text(key) + text("cpu") + number(items) + b"tQ"
    rebuilt = (
        reference
        + number(offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89"
        + b"ccollections\nOrderedDict\n)R"
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + rebuilt + b"tR"


def _mapping(**tensors):
    body = b"".join(b"X" + struct.pack("<I", len(n)) + n.encode() + t for n, t in tensors.items())
    return b"\x80\x02}(" + body + b"u."


class _State(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("d2t", torch.arange(4))
        self.register_buffer("t2d", torch.tensor([True, False, True]))


def test_reads_what_a_module_saves(tmp_path):
    module = _State()
    torch.save(module.state_dict(), tmp_path / "a.bin")
    found = TorchFile(tmp_path / "a.bin")
    assert set(found.names) == {"fc.weight", "fc.bias", "d2t", "t2d"}
    assert found.shape("fc.weight") == (2, 3)
    assert [found.dtype(n) for n in ("fc.weight", "d2t", "t2d")] == ["F32", "I64", "BOOL"]
    for name, tensor in module.state_dict().items():
        read = found.read if tensor.is_floating_point() else found.read_integers
        assert np.array_equal(read(name), tensor.numpy())
        assert read(name).dtype == tensor.numpy().dtype
    with pytest.raises(UserError, match="'d2t' has dtype I64, expected a float"):
        found.read("d2t")
    with pytest.raises(UserError, match=r"'fc\.bias' has dtype F32, expected an integer"):
        found.read_integers("fc.bias")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "F32"),
        (torch.float16, "F16"),
        (torch.bfloat16, "BF16"),
        (torch.float64, "F64"),
        (torch.int64, "I64"),
        (torch.int32, "I32"),
        (torch.int16, "I16"),
        (torch.int8, "I8"),
        (torch.uint8, "U8"),
        (torch.bool, "BOOL"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_dtype_and_protocol(tmp_path, dtype, name, protocol):
    values = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    torch.save({"x": values}, tmp_path / "a.bin", pickle_protocol=protocol)
    found = TorchFile(tmp_path / "a.bin")
    assert found.dtype("x") == name
    read = found.read if dtype.is_floating_point else found.read_integers
    assert np.array_equal(read("x"), values.float().numpy() if dtype == torch.bfloat16 else values.numpy())


def test_views_parameters_and_shared_storages(tmp_path):
    base = torch.arange(60, dtype=torch.float32)
    tensors = collections.OrderedDict(
        transposed=base[:6].reshape(2, 3).T,
        slice=base[10:40].reshape(5, 6)[1::2, ::3],
        parameter=torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16)),
        scalar=torch.tensor(3.5),
        empty=torch.zeros(0, 3),
        twice=base,
        again=base,
    )
    torch.save(tensors, tmp_path / "a.bin")
    found = TorchFile(tmp_path / "a.bin")
    assert found.names == tuple(tensors)
    for name, tensor in tensors.items():
        assert found.read(name).shape == tuple(tensor.shape)
        assert np.array_equal(found.read(name), tensor.detach().float().numpy())


def test_a_read_array_owns_its_memory(tmp_path):
    torch.save({"x": torch.zeros(3)}, tmp_path / "a.bin")
    array = TorchFile(tmp_path / "a.bin").read("x")
    array[0] = 1.0
    assert array[0] == 1.0


class _Call:
    """An object whose pickle calls anything."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (_Call(eval, "1 + 1"), "eval"),
        (_Call(getattr, "text", "upper"), "getattr"),
        (_Call(__import__("os").system, "true"), "system"),
        (_Call(__import__("subprocess").check_output, ["true"]), "check_output"),
        (_Call(pickle.loads, b"N."), "loads"),
    ],
)
def test_a_hostile_object_is_refused_by_name(tmp_path, value, name, protocol):
    program = pickle.dumps({"fc.weight": value}, protocol=protocol)
    assert name in _refused(_archive(tmp_path / "a.bin", program))


def test_nothing_of_a_hostile_file_runs(tmp_path):
    mark = tmp_path / "ran"
    program = pickle.dumps({"x": _Call(__import__("os").system, f"touch {mark}")}, protocol=2)
    assert "posix.system" in _refused(_archive(tmp_path / "a.bin", program))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (b"\x80\x02ctorch._utils\n_rebuild_tensor\n.", "torch._utils._rebuild_tensor"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02ccollections\nOrderedDict.popitem\n.", "OrderedDict.popitem"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "STRING"),
        (b"(ios\nsystem\n.", "os.system"),
        (b"(icollections\nOrderedDict\n.", "INST"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
        (b"\x80\x02P0\n.", "PERSID"),
        (b"\x80\x02(ccollections\nOrderedDict\no.", "OBJ"),
        (b"\x80\x02ccollections\nOrderedDict\n}b.", "a change of a Name"),
        (b"\x80\x02]q\x00h\x00a", "before seeing STOP"),
        (b"\x80\x02}(u", "before seeing STOP"),
        (b"\x80\x02N", "before seeing STOP"),
        (b"\x80\x02t.", "damaged"),
        (b"\x80\x02(\x85.", "damaged"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"\x80\x02X\xff\xff\xff\x7fab", "damaged"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "unexpected call of torch.FloatStorage"),
        (b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b".", "does not hold a mapping"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "'a' is int"),
        (b"\x80\x02}K\x01K\x01s.", "a key of its mapping is 1"),
        (b"\x80\x02}X\x01\x00\x00\x00a}s.", "'a' is a mapping"),
        (b"\x80\x02}(X\x01\x00\x00\x00aNX\x01\x00\x00\x00aNu.", "appears twice"),
        (b"\x80\x02}]Ns.", "damaged"),
    ],
)
def test_hand_made_programs(tmp_path, program, found):
    assert found in _refused(_archive(tmp_path / "a.bin", program))


DOUBLED = b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(1, 33))  # 2 ** 32 times ()


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (b"\x80\x02}" + DOUBLED + b"Ns.", "a key of its mapping is a tuple"),
        (b"\x80\x02(" + DOUBLED + b"Nd.", "a key of its mapping is a tuple"),
        (
            b"\x80\x02ccollections\nOrderedDict\n](" + DOUBLED + b"N\x86e\x85R.",
            "a key of its mapping is a tuple",
        ),
        (b"\x80\x02}X\x01\x00\x00\x00a" + DOUBLED + b"s.", "'a' is tuple"),
        (b"\x80\x02" + DOUBLED + b"Q.", "storage reference"),
        (DOUBLED + b".", "does not hold a mapping"),
        (b"\x80\x02})" + b"\x85" * 300_000 + b"Ns.", "a key of its mapping is a tuple"),
        (b"\x80\x02})" + b"\x85" * 300_000 + b"R.", "unexpected call of _Mapping"),
        (b"\x80\x02}X\x01\x00\x00\x00a" + b"]" * 100_000 + b"a" * 99_999 + b"s.", "'a' is list"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "does not hold a mapping"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "does not hold a mapping"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fN.", "damaged"),
        (b"\x80\x02}r\x01.", "damaged"),
        (b"\x80\x02I" + b"9" * 5000 + b"\n.", "damaged"),
        (b"N" * (1 << 20) + b".", "expected at most 1048576"),
    ],
)
def test_bombs_cost_no_more_than_they_are_long(tmp_path, program, found):
    begin = time.process_time()
    message = _refused(_archive(tmp_path / "a.bin", program))
    assert found in message
    assert len(message) < 1000
    assert time.process_time() - begin < 20  # seconds; the longest takes one


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (_tensor(storage=b"ctorch\nSize\n"), "torch.Size"),
        (_tensor(storage=b"ccollections\nOrderedDict\n"), "storage reference"),
        (_tensor(storage=b"N"), "storage reference"),
        (_tensor(key="../data.pkl"), "storage reference"),
        (_tensor(items=-1), "storage reference"),
        (_tensor(offset=-1), "malformed"),
        (_tensor(strides=(-3, 1)), "malformed"),
        (_tensor(shape=(2, -3)), "malformed"),
        (_tensor(shape=(2, 3, 1)), "malformed"),
        (_tensor(shape=(1,) * 9, strides=(1,) * 9), "9 dimensions"),
    ],
)
def test_malformed_tensors(tmp_path, tensor, found):
    assert found in _refused(_archive(tmp_path / "a.bin", _mapping(x=tensor), {"data/0": bytes(24)}))


@pytest.mark.parametrize(
    ("tensor", "data", "found"),
    [
        (_tensor(offset=1), bytes(24), "outside its storage"),
        (_tensor(strides=(4, 1)), bytes(24), "outside its storage"),
        (_tensor(shape=(2**20, 2**20), strides=(0, 0)), bytes(24), "outside its storage"),
        (_tensor(items=7), bytes(24), "holds 24 bytes, expected 28"),
        (_tensor(), bytes(28), "expected at most 24"),
        (_tensor(key="1"), bytes(24), "archive/data/1 is missing"),
    ],
)
def test_a_tensor_must_lie_within_its_storage(tmp_path, tensor, data, found):
    file = TorchFile(_archive(tmp_path / "a.bin", _mapping(x=tensor), {"data/0": data}))
    with pytest.raises(UserError, match="outside" if "outside" in found else found):
        file.read("x")


def test_hand_made_tensor_reads(tmp_path):
    data = np.arange(6, dtype="<f4").tobytes()
    file = TorchFile(
        _archive(tmp_path / "a.bin", _mapping(x=_tensor(shape=(3, 2), strides=(1, 3))), {"data/0": data})
    )
    assert np.array_equal(file.read("x"), np.arange(6.0).reshape(2, 3).T)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.bin"
    torch.save({"x": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    assert "older than torch 1.6" in _refused(path)
    path.write_bytes(b"version https://git-lfs")
    assert "neither a zip archive nor a pickle" in _refused(path)
    path.write_bytes(b"")
    assert "neither" in _refused(path)
    assert "No such file" in _refused(tmp_path / "absent.bin")
    torch.save([torch.zeros(2)], path)
    assert "does not hold a mapping" in _refused(path)
    torch.save({"state_dict": {"x": torch.zeros(2)}}, path)
    assert "save the state_dict alone" in _refused(path)
    torch.save({"x": torch.zeros(2), "step": 3}, path)
    assert "'step' is int" in _refused(path)
    torch.save({"x": torch.zeros(2, dtype=torch.complex64)}, path)
    assert "torch.ComplexFloatStorage" in _refused(path)
    torch.save({"x": torch.zeros(2).to(torch.float8_e4m3fn)}, path)
    assert "torch.Float8_e4m3fnStorage" in _refused(path) or "_rebuild_tensor_v3" in _refused(path)


def test_a_file_cut_anywhere_is_refused_or_reads_fully(tmp_path):
    torch.save({"x": torch.arange(1000)}, tmp_path / "a.bin")
    whole = (tmp_path / "a.bin").read_bytes()
    for size in range(2, len(whole) - 1, 97):
        (tmp_path / "b.bin").write_bytes(whole[:size])
        assert "truncated" in _refused(tmp_path / "b.bin")


def test_a_flipped_byte_in_the_data_is_found(tmp_path):
    torch.save({"x": torch.arange(1000)}, tmp_path / "a.bin")
    raw = bytearray((tmp_path / "a.bin").read_bytes())
    raw[raw.index(np.arange(1000).tobytes()) + 40] ^= 1
    (tmp_path / "a.bin").write_bytes(raw)
    with pytest.raises(UserError, match="'x' are damaged"):
        TorchFile(tmp_path / "a.bin").read_integers("x")


def test_unusual_archives_are_refused(tmp_path):
    path = tmp_path / "a.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("a/data.pkl", pickle.dumps({}))
    assert "compressed" in _refused(path)
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("a/data.pkl", pickle.dumps({}))
        target.writestr("b/data.pkl", pickle.dumps({}))
    assert "2 data.pkl" in _refused(path)
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("readme", b"")
    assert "0 data.pkl" in _refused(path)
    assert "little-endian" in _refused(_archive(path, pickle.dumps({}), {"byteorder": b"big"}))
