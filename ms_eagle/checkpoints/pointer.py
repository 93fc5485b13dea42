"""A directory whose weights lie in a GGUF file, inside it or elsewhere: the file that says where."""

from pathlib import Path
from typing import NamedTuple

from ms_eagle.checkpoints.gguf import parts
from ms_eagle.errors import UserError
from ms_eagle.system import json_file

NAME = "weights.json"


class Pointer(NamedTuple):
    """Where weights are.

    Attributes:
        gguf: the file, of a split model the first part.
        head_dim: of the attention heads whose rotary rows are stored as neighbours; 0 where they are not.
    """

    gguf: Path
    head_dim: int


def exists(directory: Path) -> bool:
    """Whether the directory's weights are in a GGUF file."""
    return (directory / NAME).is_file()


def read(directory: Path) -> Pointer:
    """Where they are.

    Raises:
        UserError: what is written there is nothing of ours.
    """
    told = json_file.read_object(directory / NAME)
    gguf, head_dim = told.get("gguf"), told.get("interleaved_head_dim")
    if not isinstance(gguf, str) or not isinstance(head_dim, int):
        raise UserError(f"{directory / NAME} does not say where the weights are: remove {directory}")
    return Pointer(directory / gguf, head_dim)


def files(directory: Path) -> list[Path]:
    """The GGUF files that hold the directory's weights; none where they are in its own files."""
    return parts.present(read(directory).gguf) if exists(directory) else []


def write(directory: Path, pointer: Pointer) -> None:
    """Write it; a file inside the directory is told by its name, so that the directory can move."""
    inside = pointer.gguf.parent == directory
    gguf = pointer.gguf.name if inside else str(pointer.gguf)
    json_file.write_object(directory / NAME, {"gguf": gguf, "interleaved_head_dim": pointer.head_dim})
