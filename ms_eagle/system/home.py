"""Where a user's own files are, also for a user whom the system does not know and who has no home."""

import os
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from ms_eagle.errors import UserError


def cache() -> Path:
    """This package's cache, e.g. ``~/.cache/ms_eagle``; a temporary directory where there is no home."""
    try:
        place = user_cache_path("ms_eagle")
    except (RuntimeError, KeyError):  # no home: platformdirs refuses, its older releases return "~" as it is
        place = Path("~")
    return place if place.is_absolute() else Path(tempfile.gettempdir()) / f"ms_eagle-{os.getuid()}"


def expanded(path: str | Path) -> Path:
    """``path`` with ``~`` replaced.

    Raises:
        UserError: a home that is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}; expected a path that needs no home directory") from error
