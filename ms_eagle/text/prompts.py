"""Prompt files: MT-Bench style JSONL, one conversation a line.

Format: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena" (2023), question files:
``{"question_id": 81, "category": "writing", "turns": ["first message", "second message"]}``.
"""

import codecs
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ms_eagle.errors import UserError

_KEYS = ("question_id", "category", "turns")


@dataclass(frozen=True)
class Prompt:
    """One conversation to hold.

    Attributes:
        question_id: identifier from the file, different for each; the 1-based line number where the file
            gives none.
        category: the file's category, or None.
        turns: the user's messages in order; at least one, none of them empty.
        line: 1-based line of the file.
    """

    question_id: int | str
    category: str | None
    turns: tuple[str, ...]
    line: int


def read_prompts(path: Path) -> list[Prompt]:
    """Read every prompt of a JSONL file, in order. Blank lines are skipped, other keys are allowed.

    Raises:
        UserError: the file is missing or cannot be read, or see ``parse_prompts``.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a JSONL file of prompts") from error
    return parse_prompts(data, str(path))


def parse_prompts(data: bytes, where: str) -> list[Prompt]:
    """Every prompt of JSONL text; ``where`` names it in errors.

    A ``question_id`` that has come before, as in files that were put together, gets a number: 81, 81-2, 81-3.

    Raises:
        UserError: it is empty or not UTF-8, or a line is not JSON or not of the form above; the message
            starts with ``where`` and the line's number.
    """
    # Only "\n" ends a line of JSONL: str.splitlines would also cut at U+2028 inside a text.
    lines = [line.removeprefix(codecs.BOM_UTF8) for line in data.split(b"\n")]  # of files put together, too
    prompts = [_prompt(line, f"{where}:{n}", n) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UserError(f'{where}: holds no prompts; expected lines such as {{"turns": ["Hello"]}}')
    return _numbered(prompts)


def check_text(text: str, what: str) -> None:
    """Refuse a text that has nothing to answer, or that has no UTF-8 form.

    The latter holds half a surrogate pair: JSON can spell one (``"\\ud800"``), and Python reads bytes of a
    command line that are not UTF-8 as such halves.

    Raises:
        UserError: the message starts with ``what``.
    """
    if not text.strip():
        raise UserError(f"{what} is empty; expected some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise UserError(f"{what} holds half a surrogate pair (U+{half:04X}); expected UTF-8 text") from error


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of one line of JSONL.

    Raises:
        UserError: it is not UTF-8, not JSON or not an object; the message starts with ``where``.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not UTF-8;"
            " save the file as UTF-8"
        ) from error
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits; brackets nested too deeply
        raise UserError(f"{where}: not valid JSON: nested too deeply, or a number too long") from error
    if not isinstance(record, dict):
        raise UserError(f'{where}: found {_kind(record)}; expected an object such as {{"turns": ["Hello"]}}')
    return record


def _prompt(line: bytes, where: str, number: int) -> Prompt:
    record = parse_line(line, where)
    return Prompt(
        _question_id(record, where, number), _category(record, where), _turns(record, where), number
    )


def _numbered(prompts: list[Prompt]) -> list[Prompt]:
    """The prompts, no two of which have one id."""
    taken = {str(prompt.question_id) for prompt in prompts}
    seen: set[str] = set()
    different = []
    for prompt in prompts:
        name, number = str(prompt.question_id), 2
        if name in seen:
            while (again := f"{name}-{number}") in taken:
                number += 1
            taken.add(again)
            prompt = replace(prompt, question_id=again)
        seen.add(name)
        different.append(prompt)
    return different


def _turns(record: dict[str, Any], where: str) -> tuple[str, ...]:
    if "turns" not in record:
        stray = ", ".join(json.dumps(key, ensure_ascii=True) for key in record if key not in _KEYS)
        others = f" (found {stray[:200]})" if stray else ""
        raise UserError(f'{where}: "turns" is missing{others}; expected a list with at least one message')
    turns = record["turns"]
    if not isinstance(turns, list) or not turns:
        kind = "an empty list" if turns == [] else _kind(turns)
        raise UserError(f'{where}: "turns" is {kind}; expected a list with at least one message')
    for index, turn in enumerate(turns, 1):
        if not isinstance(turn, str):
            raise UserError(f"{where}: turn {index} is {_kind(turn)}; expected text")
        check_text(turn, f"{where}: turn {index}")
    return tuple(turns)


def _question_id(record: dict[str, Any], where: str, number: int) -> int | str:
    value = record.get("question_id", number)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UserError(f'{where}: "question_id" is {_kind(value)}; expected a whole number or text')
    if isinstance(value, str):
        check_text(value, f'{where}: "question_id"')
    return value


def _category(record: dict[str, Any], where: str) -> str | None:
    value = record.get("category")
    if value is not None and not isinstance(value, str):
        raise UserError(f'{where}: "category" is {_kind(value)}; expected text')
    return value


def _kind(value: Any) -> str:
    """JSON's name for the type of ``value``, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return {str: "text", list: "a list", dict: "an object"}[type(value)]
