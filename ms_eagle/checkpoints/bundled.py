"""Heads that the package brings along: ``bundled:NAME`` is the folder ``heads/NAME`` of the package."""

from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.paths import HEADS

SCHEME = "bundled:"


def head_names() -> list[str]:
    """Names of the heads that are here."""
    return sorted(path.parent.name for path in HEADS.glob("*/config.json"))


def head_directory(name: str) -> Path:
    """The folder of one of them.

    Raises:
        UserError: there is none of that name.
    """
    names = head_names()
    if name not in names:
        raise UserError(
            f"no head named {name!r} is bundled; expected {', '.join(names) or 'none: the package has none'}"
        )
    return HEADS / name
