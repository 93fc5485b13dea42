"""Models in several GGUF files: how llama.cpp names the parts."""

import glob
import re
from pathlib import Path

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)


def count(path: Path) -> int:
    """How many parts the model has by the file's name; 1 for a file that is no part by its name."""
    match = _NAME.fullmatch(path.name)
    return int(match[3]) if match else 1


def part(path: Path, number: int) -> Path:
    """The file of part ``number``, from 1, of the model that ``path``, named as a part, belongs to."""
    match = _NAME.fullmatch(path.name)
    return path if match is None else path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf")


def present(path: Path) -> list[Path]:
    """The parts that lie beside ``path``, or the file alone where its name is not that of a part."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(match[1])}-*-of-{match[3]}.gguf"))
