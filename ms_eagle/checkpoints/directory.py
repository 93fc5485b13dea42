"""Weights of a Hugging Face model directory, or of the GGUF file that a prepared one stands for."""

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from ms_eagle.checkpoints import pointer
from ms_eagle.checkpoints.shards import Shards
from ms_eagle.errors import UserError
from ms_eagle.models.weight import Weight
from ms_eagle.system import json_file

_NAMED = 3  # names written out in a message


class Tensors(Protocol):
    """Where the tensors of a checkpoint come from.

    Attributes:
        names: every tensor's, as Hugging Face has them, sorted.
        quantised: whether matrices are stored as codes.
        converted: kinds of codes that are read as float32, for no kernel has them.
    """

    names: tuple[str, ...]
    quantised: bool
    converted: tuple[str, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            UserError: there is none of this name.
        """
        ...

    def dtype(self, name: str) -> str:
        """How it is stored, as its container names that."""
        ...

    def readable(self, name: str, integers: bool) -> bool:
        """Whether ``weight``, or else ``integers``, can read it."""
        ...

    def weight(self, name: str) -> Weight:
        """A float tensor as it is stored, where it can be mapped read-only.

        Raises:
            UserError: no such tensor, or it is not of a readable float dtype.
        """
        ...

    def integers(self, name: str) -> np.ndarray:
        """Values of an integer or boolean tensor, as stored, read-only.

        Raises:
            UserError: no such tensor, or it is not of an integer or boolean dtype.
        """
        ...


class Checkpoint:
    """The tensors of one directory, memory-mapped: opening reads headers only.

    Attributes:
        directory: where the files are.
        config: the content of config.json.
        tensors: where they come from.
        names: every tensor's name, sorted.
    """

    def __init__(self, directory: Path, config: Mapping[str, object], tensors: Tensors) -> None:
        self.directory, self.config, self.tensors = directory, config, tensors
        self.names = tensors.names

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read config.json and the headers of the weights' files.

        Raises:
            UserError: a file is missing, truncated or malformed; see ``Shards.open``.
        """
        if not directory.is_dir():
            raise UserError(f"{directory} is not a directory; expected a Hugging Face model directory")
        config = json_file.read_object(directory / "config.json")
        if pointer.exists(directory):
            from ms_eagle.checkpoints.gguf.tensors import GgufTensors  # slow to import

            return cls(directory, config, GgufTensors.open(pointer.read(directory)))
        return cls(directory, config, Shards.open(directory, config))

    @property
    def quantised(self) -> bool:
        """Whether matrices are stored as codes."""
        return self.tensors.quantised

    @property
    def converted(self) -> tuple[str, ...]:
        """Kinds of codes that are read as float32."""
        return self.tensors.converted

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.tensors.shape(name)

    def dtype(self, name: str) -> str:
        """Stored dtype of a tensor: ``F32``, ``F16``, ``BF16``, ``I64``, ..., of GGUF files ``Q4_1``, ..."""
        return self.tensors.dtype(name)

    def read(self, name: str) -> np.ndarray:
        """Values of a float tensor: float32 and float16 mapped read-only, everything else as float32.

        Raises:
            UserError: no such tensor, or it is not of a readable float dtype.
        """
        return self.tensors.weight(name).dense()

    def weight(self, name: str) -> Weight:
        """A float tensor as it is stored, mapped read-only.

        Raises:
            UserError: as for ``read``.
        """
        return self.tensors.weight(name)

    def read_integers(self, name: str) -> np.ndarray:
        """Values of an integer or boolean tensor (a draft head has index maps), as stored, read-only.

        Raises:
            UserError: no such tensor, or it is not of an integer or boolean dtype.
        """
        return self.tensors.integers(name)

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        ignored: Iterable[str] = (),
        integers: Iterable[str] = (),
    ) -> None:
        """Check that the file holds exactly the expected tensors.

        Args:
            expected: name to shape.
            ignored: shell-style patterns of names that may be present without being expected.
            integers: the expected names that hold integers or booleans; all others must be floats.

        Raises:
            UserError: tensors are missing, unexpected, mis-shaped or of the wrong kind; the first few are
                named and all are counted.
        """
        patterns, integers = tuple(ignored), frozenset(integers)
        missing = [name for name in expected if name not in self.names]
        self._refuse(missing, "missing", "is this the checkpoint of another architecture?")
        extra = [
            name
            for name in self.names
            if name not in expected and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]
        self._refuse(extra, "unexpected", "does config.json describe these weights?")
        misshaped = [
            f"{name} {list(self.shape(name))} (expected {list(shape)})"
            for name, shape in expected.items()
            if self.shape(name) != tuple(shape)
        ]
        self._refuse(misshaped, "mis-shaped", "does config.json describe these weights?")
        mistyped = [
            f"{name} of dtype {self.dtype(name)}"
            for name in expected
            if not self.tensors.readable(name, name in integers)
        ]
        self._refuse(mistyped, "wrongly typed", "weights are read as F32, F16, BF16")

    def _refuse(self, names: list[str], what: str, advice: str) -> None:
        if names:
            listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            plural = "s" if len(names) > 1 else ""
            raise UserError(f"{self.directory}: {len(names)} {what} tensor{plural}: {listed}; {advice}")
