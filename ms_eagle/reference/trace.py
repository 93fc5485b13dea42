"""Traces: one JSON object a line, written as things happen. The schema is docs/trace.md."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ms_eagle.errors import UserError
from ms_eagle.system import files

SCHEMA = 1
"""Version of the records; a reader refuses others. Raise it when a field changes its meaning or goes."""

KINDS = ("manifest", "prefill", "cycle", "finish", "error")

STAGES = ("draft", "tensorize", "verify", "accept", "commit", "extend")
"""Of a cycle, in the order they run; a trace also times ``host`` and ``checks``."""

Record = dict[str, Any]
_Key = tuple[str, int, int]


class TraceWriter:
    """Appends records to a new file, each flushed at once: a killed process leaves what it has written.

    The manifest waits for the record after it, so that a run which is refused before its first answer does
    not cost an earlier trace: where a file exists, that refusal is not recorded.
    """

    def __init__(self, path: Path) -> None:
        """Check that ``path`` can be written; nothing is created yet.

        Raises:
            UserError: see ``files.check_output``.
        """
        files.check_output(path, "execution.trace")
        self.path = path
        self._file: TextIO | None = None
        self._manifest: Mapping[str, Any] | None = None

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        """Write one record, the manifest with the next one.

        Raises:
            UserError: the file cannot be opened, the disk is full, or the file has gone.
        """
        if self._file is None:
            if kind == "manifest":
                self._manifest = record
                return
            if kind == "error" and record["error"] == UserError.__name__ and self.path.exists():
                return
        try:
            if self._file is None:
                self._open()
            self._append(kind, record)
        except OSError as error:
            raise UserError(f"execution.trace: cannot write {self.path}: {error.strerror}") from error

    def _open(self) -> None:
        self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 (open for the process's life)
        if self._manifest is not None:
            self._append("manifest", self._manifest)

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"record": kind, **record}, ensure_ascii=False, allow_nan=False)
        self._file.write(f"{line}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file, for nothing is written after it.

        A manifest that still waits is written alone, if no file is in its way.
        """
        if self._file is None and self._manifest is not None and not self.path.exists():
            self._open()
        if self._file is not None:
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
        raise UserError(_stray(path, 1, "not a manifest"))
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
    except (ValueError, RecursionError) as error:
        raise UserError(_stray(path, number, "not valid JSON")) from error
    if not isinstance(record, dict) or record.get("record") not in KINDS:
        raise UserError(_stray(path, number, "not a record"))
    return record


def _stray(path: Path, number: int, found: str) -> str:
    """What to say of a line that no trace has: at the start the whole file is something else."""
    if number == 1:
        return f"{path} is not a trace: its first line is {found}; expected a file written by --trace"
    return f"{path}:{number}: {found}; expected a record of kind {', '.join(KINDS)}"


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
