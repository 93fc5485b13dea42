"""Arrays from ``.npz`` files of unknown origin: no pickle, no more memory than there is."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ms_eagle.system import files
from ms_eagle.system.machine import available_memory

DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, MemoryError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What ``read_npz`` raises for a file that cannot be read."""


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file by name; of ``names`` those that are there, None means all.

    Raises:
        DAMAGE: it is no archive of arrays, or would take more memory than the machine has left.
    """
    with files.open_plain(path) as source, zipfile.ZipFile(source) as archive:
        # A few kilobytes may unpack to any size; no entry can give more bytes than it says.
        size, room = sum(entry.file_size for entry in archive.infolist()), available_memory()
        if room is not None and size > room:
            raise ValueError(f"it would take {size} bytes of memory, of which {room} are left")
        source.seek(0)
        with np.load(source, allow_pickle=False) as arrays:
            wanted = arrays.files if names is None else [name for name in names if name in arrays.files]
            return {name: arrays[name] for name in wanted}
