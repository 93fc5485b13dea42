"""Tensors out of a ``torch.save`` file, read without unpickling and without torch.

Format (torch/serialization.py, the zip layout since 1.6): a zip of stored entries, ``NAME/data.pkl`` with a
pickle of the object tree, ``NAME/data/KEY`` with the raw bytes of storage KEY, ``NAME/byteorder``. The pickle
is a program for a stack machine that may call anything; here only the few instructions run that a mapping of
tensors needs, and a name outside ``_ALLOWED`` ends the reading. Nothing is imported, called or constructed on
the file's behalf.
"""

import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import files

_MAX_PICKLE = 1 << 20  # bytes; a head has a few dozen tensors, its pickle a few kilobytes
_MAX_DIMS = 8
_PICKLE_FAULTS = (ValueError, LookupError, TypeError, AttributeError, struct.error, pickle.PickleError)
_ZIP_FAULTS = (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, struct.error)

# torch storage class -> dtype name as safetensors writes it, numpy dtype of the stored bytes
_STORAGES = {
    "FloatStorage": ("F32", "<f4"),
    "HalfStorage": ("F16", "<f2"),
    "BFloat16Storage": ("BF16", "<u2"),
    "DoubleStorage": ("F64", "<f8"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "i1"),
    "ByteStorage": ("U8", "u1"),
    "BoolStorage": ("BOOL", "?"),
}
_FLOATS = {"F32", "F16", "BF16", "F64"}
_ORDERED_DICT = "collections.OrderedDict"
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_INSTRUCTIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE",
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "BUILD",
    "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "BINPERSID",
}  # fmt: skip
_ALLOWED = {_ORDERED_DICT, _REBUILD_TENSOR, _REBUILD_PARAMETER, *(f"torch.{name}" for name in _STORAGES)}


@dataclass(frozen=True)
class _Name:
    """A global that the pickle mentions: a name only, never looked up."""

    path: str


@dataclass(frozen=True)
class _Storage:
    key: str
    kind: str
    items: int


@dataclass(frozen=True)
class _View:
    """A tensor of the pickle: a strided view of a storage; offset and strides count items."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Mapping(dict):
    """Takes names only: what a file may nest without end is never hashed."""

    def __setitem__(self, key: object, value: object) -> None:
        if not isinstance(key, str):
            kind = key if isinstance(key, int) else f"a {type(key).__name__}"
            raise ValueError(f"a key of its mapping is {kind}, expected a tensor name")
        if key in self:
            raise ValueError(f"key {key!r} appears twice")
        super().__setitem__(key, value)


class TorchFile:
    """The tensors of one ``.bin`` or ``.pt`` file that holds a mapping of names to tensors.

    The reading methods are those of ``ms_eagle.checkpoints.directory.Checkpoint``.

    Attributes:
        path: the file.
        names: every tensor's name, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Read the table of tensors; their values are read one by one, by ``read``.

        Raises:
            UserError: the file is missing, truncated, in the layout older than torch 1.6, not a mapping of
                names to tensors, or its pickle names anything but the few globals tensors need.
        """
        self.path = path
        try:
            with files.open_plain(path) as source, zipfile.ZipFile(source) as archive:
                self._members = {entry.filename: entry for entry in archive.infolist()}
                self._root = self._find_root()
                self._check_byte_order(archive)
                program = self._bytes(archive, f"{self._root}data.pkl", _MAX_PICKLE)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; expected a file of torch.save") from error
        except _ZIP_FAULTS as error:
            raise self._not_a_zip() from error
        self._views = self._table(_Unpickler(path, program).load())
        self.names = tuple(self._views)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._views[name].shape

    def dtype(self, name: str) -> str:
        """Dtype of a tensor as safetensors names it: ``F32``, ``BF16``, ``I64``, ``BOOL``, ..."""
        return _STORAGES[self._views[name].storage.kind][0]

    def read(self, name: str) -> np.ndarray:
        """Values of a float tensor, in its own dtype; bfloat16 comes as float32, which holds it exactly.

        Raises:
            UserError: the tensor is not of a float dtype; the storage's entry is missing, damaged or of the
                wrong size; the tensor reaches outside it.
        """
        if self.dtype(name) not in _FLOATS:
            raise self._unusable(f"tensor {name!r} has dtype {self.dtype(name)}, expected a float tensor")
        return self._values(name)

    def read_integers(self, name: str) -> np.ndarray:
        """Values of an integer or boolean tensor, in its own dtype.

        Raises:
            UserError: as ``read``, for integers and booleans.
        """
        if self.dtype(name) in _FLOATS:
            raise self._unusable(f"tensor {name!r} has dtype {self.dtype(name)}, expected an integer tensor")
        return self._values(name)

    def _values(self, name: str) -> np.ndarray:
        view = self._views[name]
        short, stored = _STORAGES[view.storage.kind]
        item = np.dtype(stored).itemsize
        key = f"{self._root}data/{view.storage.key}"
        try:
            with zipfile.ZipFile(self.path) as archive:
                data = self._bytes(archive, key, view.storage.items * item)
        except (OSError, *_ZIP_FAULTS) as error:
            raise self._unusable(f"the bytes of tensor {name!r} are damaged ({error})") from error
        if len(data) != view.storage.items * item:
            raise self._unusable(
                f"storage {view.storage.key} holds {len(data)} bytes, expected {view.storage.items * item}"
            )
        last = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        count = math.prod(view.shape)
        if count and (last >= view.storage.items or count > view.storage.items):
            raise self._unusable(f"tensor {name!r} reaches outside its storage of {view.storage.items} items")
        flat = np.frombuffer(data, stored)
        if not count:
            values = np.empty(view.shape, flat.dtype)
        else:
            steps = tuple(step * item for step in view.strides)
            values = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, steps, writeable=False)
        if short == "BF16":
            return (values.astype("<u4") << 16).view(np.float32)
        return np.array(values)

    def _find_root(self) -> str:
        pickles = [name for name in self._members if name == "data.pkl" or name.endswith("/data.pkl")]
        pickles = [name for name in pickles if name.count("/") <= 1]
        if len(pickles) != 1:
            raise self._unusable(f"it has {len(pickles)} data.pkl entries, expected 1")
        return pickles[0].removesuffix("data.pkl")

    def _check_byte_order(self, archive: zipfile.ZipFile) -> None:
        name = f"{self._root}byteorder"
        if name in self._members and self._bytes(archive, name, 16) != b"little":
            raise self._unusable("it is not little-endian")

    def _bytes(self, archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
        entry = self._members.get(name)
        if entry is None:
            raise self._unusable(f"its entry {name} is missing")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise self._unusable(f"its entry {name} is compressed or encrypted, which torch.save never does")
        if entry.file_size > limit:
            raise self._unusable(f"its entry {name} has {entry.file_size} bytes, expected at most {limit}")
        return archive.read(entry)

    def _not_a_zip(self) -> UserError:
        with open(self.path, "rb") as source:
            start = source.read(2)
        if start == b"PK":
            return self._unusable("the zip archive is truncated or damaged")
        if start[:1] == b"\x80":
            return UserError(
                f"{self.path} is a pickle in the layout older than torch 1.6, which is not read; load it "
                "once with torch and save it again as safetensors."
            )
        return self._unusable("it is neither a zip archive nor a pickle")

    def _table(self, root: object) -> dict[str, _View]:
        if not isinstance(root, dict):
            raise self._unusable("it does not hold a mapping of names to tensors")
        for name, value in root.items():
            if not isinstance(value, _View):
                kind = "a mapping" if isinstance(value, dict) else type(value).__name__
                raise self._unusable(f"{name!r} is {kind}, expected a tensor: save the state_dict alone")
        return root

    def _unusable(self, fault: str) -> UserError:
        return UserError(
            f"{self.path} is not a usable torch file: {fault}; fetch it again or use safetensors."
        )


class _Unpickler(pickle._Unpickler):
    """The standard library's own, written in Python: its table of instructions can be cut down.

    Names become ``_Name``s that nobody can call or change, and REDUCE makes mappings and ``_View``s alone.
    """

    def __init__(self, path: Path, program: bytes) -> None:
        super().__init__(io.BytesIO(program))
        self._path = path

    def load(self) -> object:
        """Run to STOP and return the top of the stack."""
        try:
            return super().load()
        except EOFError:
            fault = "it ends before seeing STOP"
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            struct.error,
            pickle.PickleError,
        ) as error:
            fault = str(error)
        raise UserError(
            f"{self._path} is not a usable torch file: its pickle is damaged ({fault}); fetch it again."
        )

    def find_class(self, module: str, name: str) -> _Name:
        """Look nothing up."""
        path = f"{module}.{name}"
        if path not in _ALLOWED:
            raise self._refused(f"the name {path!r}")
        return _Name(path)

    def persistent_load(self, identity: object) -> _Storage:
        """A storage by what the pickle says of it."""
        match identity:
            case ("storage", _Name(path), str(key), str(), int(items)) if items >= 0:
                kind = path.removeprefix("torch.")
                if kind in _STORAGES and key.isalnum():
                    return _Storage(key, kind, items)
        raise ValueError("a storage reference is malformed")

    def _empty_dict(self) -> None:
        self.append(_Mapping())

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append(_mapping(zip(items[::2], items[1::2], strict=True)))

    def _inst(self) -> None:
        self.find_class(*(self.readline()[:-1].decode("ascii") for _ in range(2)))
        raise self._refused("instruction INST")

    def _build(self) -> None:
        self.stack.pop()  # attributes of an OrderedDict (a state_dict's _metadata): nothing of use
        if not isinstance(self.stack[-1], _Mapping):
            raise self._refused(f"a change of a {type(self.stack[-1]).__name__.strip('_')}")

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        match self.stack.pop(), arguments:
            case _Name(path), () if path == _ORDERED_DICT:
                self.append(_Mapping())
            case _Name(path), (list(pairs),) if path == _ORDERED_DICT:
                self.append(_mapping(pairs))
            case _Name(path), (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                path == _REBUILD_TENSOR
            ):
                numbers = (offset, *shape, *strides)
                if any(type(n) is not int or n < 0 for n in numbers) or len(shape) != len(strides):
                    raise ValueError("a tensor's shape, strides or offset are malformed")
                if len(shape) > _MAX_DIMS:
                    raise ValueError(f"a tensor has {len(shape)} dimensions, expected at most {_MAX_DIMS}")
                self.append(_View(storage, offset, shape, strides))
            case _Name(path), (_View() as view, *_) if path == _REBUILD_PARAMETER:
                self.append(view)
            case function, _:
                what = function.path if isinstance(function, _Name) else type(function).__name__
                raise ValueError(f"an unexpected call of {what}")

    def _refused(self, what: str) -> UserError:
        return UserError(
            f"{self._path} is refused: its pickle contains {what}, which no mapping of tensors needs and "
            "which could run code; use a safetensors file, or convert this one where you trust it."
        )


def _mapping(pairs: Iterable[tuple[object, object]]) -> _Mapping:
    mapping = _Mapping()
    for key, value in pairs:
        mapping[key] = value
    return mapping


def _refuse(name: str) -> Callable[[_Unpickler], None]:
    def refuse(unpickler: _Unpickler) -> None:
        raise unpickler._refused(f"instruction {name}")

    return refuse


_Unpickler.dispatch = {
    code: pickle._Unpickler.dispatch[code] if name in _INSTRUCTIONS else _refuse(name)
    for code, name in ((ord(each.code), each.name) for each in pickletools.opcodes)
} | {
    pickle.EMPTY_DICT[0]: _Unpickler._empty_dict,
    pickle.DICT[0]: _Unpickler._dict,
    pickle.INST[0]: _Unpickler._inst,
    pickle.BUILD[0]: _Unpickler._build,
    pickle.REDUCE[0]: _Unpickler._reduce,
}
