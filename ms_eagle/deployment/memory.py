"""The memory behind a bundle's graphs: every weight and every cache once, whatever the number of graphs.

MindSpore gives each loaded graph Parameters of its own. ``Parameter.set_data`` lets one of them point at the
memory of another tensor without a copy; here all graphs get the same tensors, so that what one writes (a
cache) another reads, and no weight is held twice. ``Memory.check_shared`` makes sure of it.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from ms_eagle.checkpoints.safetensors_file import Entry, read_header
from ms_eagle.deployment.manifest import TensorRecord
from ms_eagle.errors import UserError

_STORED = {"F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2"),
           "U8": ("uint8", "u1"), "I32": ("int32", "<i4"), "BOOL": ("bool", "?")}  # fmt: skip
_TYPES = {
    "float32": ms.float32,
    "uint8": ms.uint8,
    "float16": ms.float16,
    "bfloat16": ms.bfloat16,
    "int32": ms.int32,
    "bool": ms.bool_,
}


class Memory:
    """Weights and states by name, and the Parameters that stand for them in loaded graphs."""

    def __init__(self, weights: Path, states: Iterable[TensorRecord], device: str) -> None:
        """Read the weights and allocate the states.

        Args:
            weights: a safetensors file.
            states: zeros at the start.
            device: the tensors are put there at once: graphs can share only what is in place.

        Raises:
            UserError: the file is damaged or holds a number format that no bundle has.
        """
        self._device = device
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._tensors: dict[str, Tensor] = {}
        self._users: dict[str, list[Parameter]] = {}
        header = read_header(weights)
        with open(weights, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, entry in header.items():
                self._keep(name, *_read(weights, name, entry, data))
        for state in states:
            if state.name in self._tensors:
                raise UserError(f"{weights} holds {state.name}, which is a state; export the bundle again")
            self._keep(state.name, state.dtype, zeros(state))

    def _keep(self, name: str, dtype: str, tensor: Tensor) -> None:
        self._shapes[name] = (dtype, tuple(tensor.shape))
        self._tensors[name] = tensor if self._device == "CPU" else tensor.move_to(self._device)
        self._users[name] = []

    def check(self, parameters: Mapping[str, tuple[str, tuple[int, ...]]], where: Path) -> None:
        """Compare what a graph needs with what is here.

        Args:
            parameters: number format and shape by name.
            where: the graph's file, for the message.

        Raises:
            UserError: a tensor is missing or of another shape or format.
        """
        for name, wanted in parameters.items():
            found = self._shapes.get(name)
            if found != wanted:
                have = "none" if found is None else f"{found[0]} {list(found[1])}"
                raise UserError(
                    f"{where} needs {name}, {wanted[0]} {list(wanted[1])}; the weights have {have}: "
                    "they are of different bundles"
                )

    def share(self, parameters: Mapping[str, Parameter]) -> None:
        """Let the Parameters of a graph be the tensors of their names."""
        for name, parameter in parameters.items():
            parameter.set_data(self._tensors[name])
            self._users[name].append(parameter)

    def replace(self, name: str, value: Tensor) -> None:
        """Give a state new content, in every graph."""
        self._keep_users(name, value if self._device == "CPU" else value.move_to(self._device))

    def _keep_users(self, name: str, tensor: Tensor) -> None:
        self._tensors[name] = tensor
        for parameter in self._users[name]:
            parameter.set_data(tensor)

    def arrays(self) -> Iterator[np.ndarray]:
        """The memory itself, on the CPU."""
        for tensor in self._tensors.values():
            yield tensor.asnumpy()

    def check_shared(self) -> None:
        """Make sure that graphs which have run still use the same memory.

        Raises:
            RuntimeError: MindSpore has given a graph memory of its own, so that its results would be wrong.
        """
        for name, users in self._users.items():
            places = {parameter.data_ptr() for parameter in users}
            if len(places) > 1:
                raise RuntimeError(
                    f"{name} is in {len(places)} places of memory: this MindSpore does not share Parameters "
                    "between loaded graphs here, so that this bundle cannot run"
                )


def zeros(state: TensorRecord) -> Tensor:
    """The content of a state at the start."""
    return ms.ops.zeros(tuple(state.shape), _TYPES[state.dtype])


def _read(weights: Path, name: str, entry: Entry, data: mmap.mmap) -> tuple[str, Tensor]:
    """Number format and content of one weight."""
    if entry.dtype not in _STORED:
        raise UserError(f"{weights}: {name} has the dtype {entry.dtype}; expected {', '.join(_STORED)}")
    dtype, stored = _STORED[entry.dtype]
    raw = np.frombuffer(data, stored, count=int(np.prod(entry.shape)), offset=entry.offset)
    values = raw.reshape(entry.shape)
    if dtype == "bfloat16":
        tensor = Tensor((values.astype(np.uint32) << 16).view(np.float32)).astype(ms.bfloat16)
    else:
        tensor = Tensor(values)  # a copy: the file may go
    del raw, values
    if hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED)
    return dtype, tensor
