"""Text files named on a command line."""

from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.text.prompts import check_text


def read_text(path: Path) -> str:
    """The content of a UTF-8 file.

    Raises:
        UserError: it cannot be read, is not UTF-8, or holds no text.
    """
    try:
        text = files.text_of(path.read_bytes())
    except OSError as error:
        raise UserError(f"--text {path}: {error.strerror}; expected a text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--text {path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    check_text(text, f"--text {path}: the text")
    return text
