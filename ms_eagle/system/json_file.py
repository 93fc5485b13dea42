"""JSON files of a model directory: read strictly, written atomically."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_eagle.errors import UserError
from ms_eagle.system import files


def read_object(path: Path) -> dict[str, Any]:
    """Read a UTF-8 file that holds one JSON object.

    Raises:
        UserError: the file is missing or unreadable, not UTF-8, not JSON (with the line), or not an object.
    """
    try:
        with files.open_plain(path) as source:
            content = json.loads(source.read().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; expected a JSON file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); expected a JSON file") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}:{error.lineno}: not valid JSON ({error.msg}); restore or correct it"
        ) from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of thousands of digits
        raise UserError(
            f"{path} is nested too deeply or holds a number too long; restore or correct it"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, expected an object")
    return content


def write_object(path: Path, content: Mapping[str, object]) -> None:
    """Write one JSON object, indented, UTF-8, atomically."""
    files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
