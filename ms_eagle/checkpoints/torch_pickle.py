"""Tensors out of a ``torch.save`` file, read without unpickling and without torch.

Format (torch/serialization.py, the zip layout since 1.6): a zip of stored entries, ``NAME/data.pkl`` with a
pickle of the object tree, ``NAME/data/KEY`` with the raw bytes of storage KEY, ``NAME/byteorder``. The pickle
is a program for a stack machine that may call anything; here a machine of our own runs the few instructions
that a mapping of tensors needs, and a name outside ``_ALLOWED`` ends the reading. Nothing is imported, called
or constructed on the file's behalf.
"""

import math
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError

_MAX_PICKLE = 64 << 20  # bytes; a head has a few dozen tensors, its pickle a few kilobytes
_MAX_DIMS = 8
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
_LITERALS = {
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE",
}  # fmt: skip
_CONSTANTS = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
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


class TorchFile:
    """The tensors of one ``.bin`` or ``.pt`` file that holds a mapping of names to tensors.

    The reading methods are those of `ms_eagle.checkpoints.directory.Checkpoint`.

    Attributes:
        path: the file.
        names: every tensor's name, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Read the table of tensors; their values are read one by one, by `read`.

        Raises:
            UserError: the file is missing, truncated, in the layout older than torch 1.6, not a mapping of
                names to tensors, or its pickle names anything but the few globals tensors need.
        """
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {entry.filename: entry for entry in archive.infolist()}
                self._root = self._find_root()
                self._check_byte_order(archive)
                pickle = self._bytes(archive, f"{self._root}data.pkl", _MAX_PICKLE)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; expected a file of torch.save") from error
        except _ZIP_FAULTS as error:
            raise self._not_a_zip() from error
        self._views = self._table(_Machine(path, pickle).run())
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
            UserError: as `read`, for integers and booleans.
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
            if not isinstance(name, str):
                raise self._unusable(f"a key of its mapping is {name!r}, expected a tensor name")
            if not isinstance(value, _View):
                found = "a mapping" if isinstance(value, dict) else type(value).__name__
                raise self._unusable(f"{name!r} is {found}, expected a tensor: save the state_dict alone")
        return root

    def _unusable(self, found: str) -> UserError:
        return UserError(
            f"{self.path} is not a usable torch file: {found}; fetch it again or use safetensors."
        )


class _Machine:
    """The instructions of a pickle that a mapping of tensors needs; anything else is refused by name."""

    def __init__(self, path: Path, program: bytes) -> None:
        self.path = path
        self.program = program
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        """Run to STOP and return the top of the stack."""
        try:
            for opcode, argument, _ in pickletools.genops(self.program):
                if opcode.name != "STOP":  # genops ends there, and raises where it is missing
                    self._step(opcode.name, argument)
            return self._pop(1)[0]
        except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self.path} is not a usable torch file: its pickle is damaged ({error}); fetch it again."
            ) from error

    def _step(self, name: str, argument: object) -> None:
        stack = self.stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self._top(object)
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self._top(object)
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._pop(int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        elif name == "LIST":
            stack.append(self._pop_to_mark())
        elif name == "DICT":
            items = self._pop_to_mark()
            stack.append({})
            self._set(self._top(dict), items)
        elif name in ("APPEND", "APPENDS"):
            items = self._pop(1) if name == "APPEND" else self._pop_to_mark()
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
            self._set(self._top(dict), items)
        elif name == "GLOBAL":
            self._push_name(str(argument).replace(" ", "."))
        elif name in ("STACK_GLOBAL", "INST"):
            parts = self._pop(2) if name == "STACK_GLOBAL" else str(argument).split(" ")
            self._push_name(".".join(str(part) for part in parts))
            if name == "INST":
                raise self._refused("instruction INST")
        elif name == "BINPERSID":
            self._push_storage(*self._pop(1))
        elif name == "REDUCE":
            self._reduce(*self._pop(2))
        elif name == "BUILD":
            self._pop(1)  # attributes of an OrderedDict (a state_dict's _metadata): nothing of use
            self._top(dict)
        elif name not in ("PROTO", "FRAME"):
            raise self._refused(f"instruction {name}")

    def _pop(self, count: int) -> list[object]:
        floor = self.marks[len(self.marks) - 1] if self.marks else 0
        if len(self.stack) - floor < count:
            raise ValueError("stack underflow")
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _pop_to_mark(self) -> list[object]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _top(self, kind: type) -> object:
        top = self.stack[len(self.stack) - 1]
        if not isinstance(top, kind):
            raise self._refused(f"a change of a {type(top).__name__.strip('_')}")
        return top

    def _set(self, target: dict, items: list[object]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            if key in target:
                raise ValueError(f"key {key!r} appears twice")
            target[key] = value

    def _push_name(self, path: str) -> None:
        if path not in _ALLOWED:
            raise self._refused(f"the name {path!r}")
        self.stack.append(_Name(path))

    def _push_storage(self, identity: object) -> None:
        match identity:
            case ("storage", _Name(path), str(key), str(), int(items)) if items >= 0:
                kind = path.removeprefix("torch.")
                if kind in _STORAGES and key.isalnum():
                    self.stack.append(_Storage(key, kind, items))
                    return
        raise ValueError("a storage reference is malformed")

    def _reduce(self, function: object, arguments: object) -> None:
        match function, arguments:
            case _Name(path), () if path == _ORDERED_DICT:
                self.stack.append({})
            case _Name(path), (list(pairs),) if path == _ORDERED_DICT:
                target: dict[object, object] = {}
                self._set(target, [item for key, value in pairs for item in (key, value)])
                self.stack.append(target)
            case _Name(path), (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                path == _REBUILD_TENSOR
            ):
                numbers = (offset, *shape, *strides)
                if any(type(n) is not int or n < 0 for n in numbers) or len(shape) != len(strides):
                    raise ValueError("a tensor's shape, strides or offset are malformed")
                if len(shape) > _MAX_DIMS:
                    raise ValueError(f"a tensor has {len(shape)} dimensions, expected at most {_MAX_DIMS}")
                self.stack.append(_View(storage, offset, shape, strides))
            case _Name(path), (_View() as view, *_) if path == _REBUILD_PARAMETER:
                self.stack.append(view)
            case _:
                what = function.path if isinstance(function, _Name) else type(function).__name__
                raise ValueError(f"an unexpected call of {what}")

    def _refused(self, what: str) -> UserError:
        return UserError(
            f"{self.path} is refused: its pickle contains {what}, which no mapping of tensors needs and "
            "which could run code; use a safetensors file, or convert this one where you trust it."
        )
