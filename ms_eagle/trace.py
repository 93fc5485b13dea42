"""Traces: one JSON object a line, written as things happen. The schema is docs/trace.md."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_eagle.errors import UserError

SCHEMA = 1
"""Version of the records; a reader refuses others. Raise it when a field changes its meaning or goes."""

KINDS = ("manifest", "prefill", "cycle", "finish", "error")

STAGES = ("draft", "tensorize", "verify", "accept", "commit", "extend")
"""Of a cycle, in the order they run; a trace also times ``host`` and ``checks``."""

Record = dict[str, Any]
_Key = tuple[str, int, int]


class TraceWriter:
    """Appends records to a new file, each flushed at once: a killed process leaves what it has written."""

    def __init__(self, path: Path) -> None:
        """Create ``path``, or empty it.

        Raises:
            UserError: it cannot be written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open for the process's life)
        except OSError as error:
            raise UserError(f"execution.trace: cannot write {path}: {error.strerror}") from error

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        """Write one record.

        Raises:
            UserError: the disk is full, or the file has gone.
        """
        try:
            line = json.dumps({"record": kind, **record}, ensure_ascii=False, allow_nan=False)
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"execution.trace: cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; nothing is written after it."""
        self._file.close()


@dataclass
class Turn:
    """The records of one answer.

    Attributes:
        prefill: of its prompt.
        cycles: in order.
        finish: None where the trace ends before the answer does.
    """

    prefill: Record
    cycles: list[Record] = field(default_factory=list)
    finish: Record | None = None


@dataclass
class Trace:
    """A trace that was read.

    Attributes:
        path: of the file.
        manifest: the record of the run.
        turns: the answers, in the order they were begun.
        errors: error records, in order.
        torn: the last line was cut off, as a killed process leaves it; it is not among the records.
    """

    path: Path
    manifest: Record
    turns: list[Turn] = field(default_factory=list)
    errors: list[Record] = field(default_factory=list)
    torn: bool = False


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        UserError: the file cannot be read, does not start with a manifest of this schema, or a line other
            than a torn last one is not a record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; expected a trace") from error
    *lines, rest = data.split(b"\n")
    torn = bool(rest)
    records = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    if not records or records[0]["record"] != "manifest":
        raise UserError(f"{path} does not begin with a manifest; expected a trace of reference mode")
    manifest = records[0]
    if manifest.get("schema") != SCHEMA:
        raise UserError(
            f"{path} is a trace of schema {manifest.get('schema')!r}; expected {SCHEMA}: read it with the"
            " version of ms_eagle that wrote it"
        )
    trace = Trace(path, manifest, torn=torn)
    open_turns: dict[_Key, Turn] = {}
    for number, record in enumerate(records[1:], 2):
        try:
            _place(trace, open_turns, record)
        except KeyError as error:
            raise UserError(f"{path}:{number}: the {record['record']} record lacks {error}") from error
    return trace


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line.decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not a JSON object ({error}); is it a trace?") from error
    if not isinstance(record, dict) or record.get("record") not in KINDS:
        raise UserError(f"{path}:{number}: expected a record of kind {', '.join(KINDS)}")
    return record


def _place(trace: Trace, open_turns: dict[_Key, Turn], record: Record) -> None:
    kind = record["record"]
    if kind == "error":
        trace.errors.append(record)
    elif kind == "prefill":
        open_turns[_key(record)] = Turn(record)
        trace.turns.append(open_turns[_key(record)])
    elif kind in ("cycle", "finish"):
        turn = open_turns.get(_key(record))
        if turn is None:
            raise KeyError("a prefill record before it")
        if kind == "cycle":
            turn.cycles.append(record)
        else:
            turn.finish = record


def _key(record: Record) -> _Key:
    """Names repeat where a chat is reset; rows of a batch never do."""
    return record["prompt"], record["turn"], record["row"]
