"""The tensors of a directory's safetensors files, whole or sharded, read strictly and lazily."""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.checkpoints.safetensors_file import Entry, read_header
from ms_eagle.errors import UserError
from ms_eagle.models.weight import Weight
from ms_eagle.system import json_file

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_FORMATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
_LONGEST_NAME = 255  # bytes; of file systems
_NAMED = 3  # names written out in a message


@dataclass(frozen=True)
class _Place:
    file: Path
    entry: Entry


class Shards:
    """See ``directory.Tensors``; memory-mapped: opening reads headers only."""

    quantised, converted = False, ()

    def __init__(self, directory: Path, places: Mapping[str, _Place]) -> None:
        self.directory = directory
        self.names = tuple(sorted(places))
        self._places = places
        self._maps = {file: _map(file) for file in {place.file for place in places.values()}}

    @classmethod
    def open(cls, directory: Path, config: Mapping[str, object]) -> "Shards":
        """Read the header of every safetensors file.

        Raises:
            UserError: a file is missing, truncated or malformed; the index and its shards disagree; there
                are only pickles (``.bin``), which are not read.
        """
        if (directory / _SINGLE).exists():
            files = {directory / _SINGLE: read_header(directory / _SINGLE)}
        elif (directory / _INDEX).exists():
            files = _read_shards(directory, tied=config.get("tie_word_embeddings") is True)
        else:
            raise _no_weights(directory)
        places: dict[str, _Place] = {}
        for file, entries in files.items():
            for name, entry in entries.items():
                if name in places:
                    other = places[name].file.name
                    raise UserError(f"{directory}: tensor {name!r} is in both {other} and {file.name}")
                places[name] = _Place(file, entry)
        return cls(directory, places)

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``directory.Tensors``."""
        return self._place(name).entry.shape

    def dtype(self, name: str) -> str:
        """See ``directory.Tensors``; as safetensors names it: ``F32``, ``F16``, ``BF16``, ``I64``, ..."""
        return self._place(name).entry.dtype

    def readable(self, name: str, integers: bool) -> bool:
        """See ``directory.Tensors``."""
        return self.dtype(name) in (_INTEGERS if integers else _FLOATS)

    def weight(self, name: str) -> Weight:
        """See ``directory.Tensors``."""
        # Pages read before are likely done with: kept, they would count as this process's memory to the end.
        # One that is still wanted comes back from the file by itself.
        if hasattr(mmap, "MADV_DONTNEED"):
            self._maps[self._place(name).file].madvise(mmap.MADV_DONTNEED)
        values = self._stored(name, _FLOATS, "a float tensor")
        return Weight(_FORMATS[self.dtype(name)], values)

    def integers(self, name: str) -> np.ndarray:
        """See ``directory.Tensors``."""
        return self._stored(name, _INTEGERS, "an integer or boolean tensor")

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise UserError(f"{self.directory} has no tensor {name!r}")
        return self._places[name]

    def _stored(self, name: str, dtypes: Mapping[str, str], accepted: str) -> np.ndarray:
        place = self._place(name)
        if place.entry.dtype not in dtypes:
            raise UserError(
                f"{place.file}: tensor {name!r} has dtype {place.entry.dtype}, expected {accepted} "
                f"({', '.join(dtypes)})"
            )
        values = np.frombuffer(
            self._maps[place.file],
            np.dtype(dtypes[place.entry.dtype]),
            count=math.prod(place.entry.shape),
            offset=place.entry.offset,
        ).reshape(place.entry.shape)
        if values.flags.aligned:
            return values
        values = values.copy()  # a header of odd length: compute kernels want aligned data
        values.flags.writeable = False
        return values


def _map(file: Path) -> mmap.mmap:
    with open(file, "rb") as source:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)


def _read_shards(directory: Path, *, tied: bool) -> dict[Path, dict[str, Entry]]:
    index = directory / _INDEX
    weight_map = json_file.read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map; expected tensor names with their files")
    for name, file in weight_map.items():
        plain = isinstance(file, str) and file.endswith(".safetensors") and Path(file).name == file
        if not plain or len(file.encode(errors="replace")) > _LONGEST_NAME:
            raise UserError(
                f"{index} places {name!r} in {file!r}; expected a .safetensors file of the same directory"
            )
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (directory / shard).is_file()]
    if absent:
        raise UserError(
            f"{directory}: {len(absent)} of {len(shards)} shards are missing: {', '.join(absent[:_NAMED])}; "
            "fetch the missing files"
        )
    files = {directory / shard: read_header(directory / shard) for shard in shards}
    for file, entries in files.items():
        listed = {entry for name, entry in entries.items() if name in weight_map}
        strays = [name for name, entry in entries.items() if entry not in listed]  # an alias of one is none
        if strays:
            raise UserError(f"{file} holds {strays[0]!r}, which {index.name} does not list; fetch both again")
    for name, shard in weight_map.items():
        # An LM head that is the embedding is often listed by exporters that did not write it twice.
        if name not in files[directory / shard] and not (tied and name == "lm_head.weight"):
            raise UserError(f"{index} places {name!r} in {shard}, which lacks it; fetch both again")
    return files


def _no_weights(directory: Path) -> UserError:
    pickles = [path.name for kind in ("*.bin", "*.pt", "*.pth") for path in sorted(directory.glob(kind))]
    if pickles:
        return UserError(
            f"{directory} holds weights only as a pickle ({pickles[0]}), which could run code when read; "
            f"safetensors is needed: on a machine that trusts the file, load it with transformers and call "
            "save_pretrained(..., safe_serialization=True)"
        )
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    contents = f"{len(others)} other safetensors files ({others[0]})" if others else "no safetensors files"
    return UserError(f"{directory} holds {contents}; expected {_SINGLE} or {_INDEX} with its shards")
