"""The native CPU kernels as a loaded library: packing, threads, calls on numpy arrays.

MindSpore reaches the same library through ``ms_eagle.kernels.native``; both share one thread pool. This
module does not import MindSpore.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ms_eagle.kernels.build import SOURCES, NativeUnavailable, build, discard
from ms_eagle.kernels.formats import GROUP, Codes

PANEL = 32
"""Columns of a panel of packed weights (``kPanel`` in ``cpu/panel.h``)."""

ABSENT = np.zeros(1, np.float32)
"""What an op takes in place of an optional tensor that is not there."""

_LARGE = 1 << 20  # bytes

# Arrays go as plain addresses: numpy's `data_as` makes a reference cycle, which keeps each array until the
# garbage collector comes by, and a model's weights in memory twice.
_MEMORY = ctypes.c_void_p


class NativeError(ValueError):
    """An op refused its arguments; the text says which, what was found and what was expected."""


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Library:
    """One compiled library; see ``load``."""

    def __init__(self, path: Path) -> None:
        """Open the library at ``path``.

        Raises:
            NativeUnavailable: it cannot be opened, or has not the functions it should have.
        """
        self.path = path
        try:
            self._functions = ctypes.CDLL(str(path))
            self._functions.ms_eagle_last_error.restype = ctypes.c_char_p
            pack = self._functions.ms_eagle_pack
            stream = self._functions.ms_eagle_stream
            stream.argtypes, stream.restype = (_MEMORY, ctypes.c_int64), ctypes.c_float
            self._functions.ms_eagle_settle.argtypes = (_MEMORY, ctypes.c_int64)
            pack.argtypes = (_MEMORY, ctypes.c_int64, ctypes.c_int64, _MEMORY, ctypes.c_int64)
            pack_codes = self._functions.ms_eagle_pack_codes
            pack_codes.argtypes = (_MEMORY, _MEMORY, _MEMORY, ctypes.c_int, *pack.argtypes[1:])
        except (OSError, AttributeError) as error:
            raise NativeUnavailable(f"the compiled kernels in {path} cannot be loaded: {error}") from error

    @property
    def threads(self) -> int:
        """Threads that share the work of an op, for the whole process."""
        return self._functions.ms_eagle_threads()

    def set_threads(self, count: int) -> None:
        """Set ``threads``, at least 1; results do not depend on it."""
        self._functions.ms_eagle_set_threads(count)

    def pack(self, *weights: np.ndarray) -> np.ndarray:
        """Pack matrices ``[out, in]`` into panels, float32 ``[count * ceil(out / 32), in, 32]``.

        Args:
            weights: one, or several alike whose panels take turns.
        """
        out, columns = _alike([weight.shape for weight in weights])
        packed = np.empty((len(weights) * -(-out // PANEL), columns, PANEL), np.float32)
        for i, weight in enumerate(weights):
            matrix = np.ascontiguousarray(weight, np.float32)
            self._check(
                self._functions.ms_eagle_pack(
                    matrix.ctypes.data, out, columns, packed[i:].ctypes.data, len(weights)
                )
            )
        return packed

    def pack_codes(self, *weights: Codes) -> np.ndarray:
        """Pack matrices of one kind of codes, uint8 ``[count * ceil(out / 32), in, bytes of an input]``.

        Args:
            weights: one, or several alike whose panels take turns.
        """
        out, columns = _alike([weight.shape for weight in weights])
        bits, minima = weights[0].bits, weights[0].minima is not None
        width = PANEL * bits // 8 + (2 if minima else 1) * 2 * PANEL // GROUP
        packed = np.empty((len(weights) * -(-out // PANEL), columns, width), np.uint8)
        for i, weight in enumerate(weights):
            arrays = [
                None if array is None else np.ascontiguousarray(array)
                for array in (weight.codes, weight.scales, weight.minima)
            ]
            self._check(
                self._functions.ms_eagle_pack_codes(
                    *(None if array is None else array.ctypes.data for array in arrays),
                    bits,
                    out,
                    columns,
                    packed[i:].ctypes.data,
                    len(weights),
                )
            )
        return packed

    def settle(self, array: np.ndarray) -> None:
        """Ask the system to move an array's memory to large pages, which stream faster; its content stays."""
        self._functions.ms_eagle_settle(array.ctypes.data, array.nbytes)

    def settle_large(self, arrays: Iterable[np.ndarray]) -> threading.Thread:
        """``settle`` every large array in a thread, which is returned, while the caller goes on.

        It takes a second for half a gigabyte. Small arrays lie scattered, and are not what takes the time.
        """
        large = [array for array in arrays if array.nbytes >= _LARGE]

        def run() -> None:
            for array in large:
                self.settle(array)

        thread = threading.Thread(target=run, name="settle")
        thread.start()
        return thread

    def stream(self, array: np.ndarray) -> float:
        """Read an array once, on all threads, and return its sum as float32: the floor of any step."""
        return self._functions.ms_eagle_stream(array.ctypes.data, array.nbytes // 4)

    def call(self, op: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Call an op of ``cpu/ops.cc`` on C-contiguous arrays; outputs are written in place.

        Raises:
            NativeError: the op refused its arguments.
        """
        arrays = (*inputs, *outputs)
        for array in arrays:
            if not array.flags.c_contiguous:
                raise NativeError(f"{op}: an array of shape {array.shape} is not contiguous")
        count = len(arrays)
        data = (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays))
        ranks = (ctypes.c_int * count)(*(array.ndim for array in arrays))
        shapes = [(ctypes.c_int64 * max(1, array.ndim))(*array.shape) for array in arrays]
        pointers = (ctypes.POINTER(ctypes.c_int64) * count)(
            *(ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)) for shape in shapes)
        )
        types = (ctypes.c_char_p * count)(*(str(array.dtype).encode() for array in arrays))
        self._check(getattr(self._functions, op)(count, data, ranks, pointers, types, None, None))

    def _check(self, status: int) -> None:
        if status != 0:
            raise NativeError(self._functions.ms_eagle_last_error().decode(errors="replace"))


def _alike(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """The shape ``(out, in)`` of matrices that share panels."""
    first = shapes[0]
    if len(first) != 2 or min(first) < 1:
        raise NativeError(f"pack: a weight of shape {first}; expected [out, in]")
    if any(shape != first for shape in shapes):
        raise NativeError(f"pack: shapes {' and '.join(map(str, shapes))}; expected all alike")
    return first[0], first[1]


def load(
    threads: int | None = None,
    level: str | None = None,
    directory: Path | None = None,
    sources: Path = SOURCES,
    notice: Callable[[str], None] = lambda line: None,
) -> Library:
    """Build the kernels if this machine has not, load them and set the threads of the process.

    Args:
        threads: None means every core that the process may use.
        level: a key of ``build.LEVELS``; None is the best that this machine can run.
        directory: the cache of built libraries; None is the user's.
        sources: the directory of their sources.
        notice: see ``build.build``.

    Raises:
        NativeUnavailable: no compiler, a failed build, or a library that cannot be loaded.
    """
    path = build(level, directory, sources=sources, notice=notice)
    try:
        library = Library(path)
    except NativeUnavailable:
        discard(path)  # whole, but of a system with other libraries, whose home this is too
        library = Library(build(level, directory, sources=sources, notice=notice))
    library.set_threads(available_cores() if threads is None else threads)
    return library
