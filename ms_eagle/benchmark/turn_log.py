"""The turns of a run on disk: one JSON object a line, each safe once ``add`` has returned.

A run is a directory. Its single process writes ``turns.jsonl``; of several workers, rank ``r`` writes
``turns.rank<r>.jsonl``, and rank 0 merges them: workers share nothing but the directory, no collective
operation runs, and one that dies takes no other with it. A writer holds a lock on its file for as long as it
lives, however it ends: who gets the lock knows that nobody writes there any more.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.locks import try_lock

Record = dict[str, Any]

MERGED = "turns.jsonl"
_POLL = 0.2  # seconds between two looks at another worker's file


def rank_file(directory: Path, rank: int) -> Path:
    """Where a worker of several keeps its turns."""
    return directory / f"turns.rank{rank}.jsonl"


def read(path: Path) -> list[Record]:
    """The records of a file, oldest first; a last line that was cut off while it was written is left out.

    Raises:
        UserError: the file cannot be read, or a line that is not the last is no record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected the turns of a benchmark") from error
    records = []
    # What follows the last line break was cut off: its process was ended while it wrote.
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            if line.strip():
                records.append(_record(line))
        except ValueError as error:
            raise UserError(
                f"{path}:{number}: not the record of a turn ({error}); remove the line to run that turn again"
            ) from error
    return records


def _record(line: bytes) -> Record:
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("turn_name"), str):
        raise ValueError("expected an object with turn_name")
    return record


def collect(directory: Path) -> dict[str, Record]:
    """Every turn that the files of a run hold, by name; a later record of a turn replaces an earlier one.

    A measured turn is never replaced by a failed one.
    """
    turns: dict[str, Record] = {}
    for path in (directory / MERGED, *sorted(directory.glob("turns.rank*.jsonl"))):
        for record in read(path) if path.exists() else ():
            known = turns.get(record["turn_name"])
            if known is None or "error" in known or "error" not in record:
                turns[record["turn_name"]] = record
    return turns


class TurnLog:
    """The turns of a run that this process adds to.

    Attributes:
        path: the file it writes.
        known: by name, what is on disk.
    """

    def __init__(self, path: Path, known: dict[str, Record]) -> None:
        """Open the file for further records, and hold it.

        Raises:
            UserError: another process holds it, or it cannot be written.
        """
        self.path, self.known = path, known
        try:
            self._file = open(path, "ab+")  # noqa: SIM115 (held for the life of the run)
            held = try_lock(self._file.fileno())
        except OSError as error:  # of the file, or of its file system, which may have no locks
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        if not held:
            self._file.close()
            raise UserError(f"{path}: another benchmark is writing there; name another --out")
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        """End the file after its last whole line, so that the next one starts afresh."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)

    def measured(self, name: str) -> bool:
        """Whether a turn is done; one that failed is not."""
        return name in self.known and "error" not in self.known[name]

    def add(self, records: Iterable[Record]) -> None:
        """Append records; they are on the disk when this returns."""
        records = list(records)
        text = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.known |= {record["turn_name"]: record for record in records}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def await_workers(
    directory: Path, ranks: Sequence[int], start_seconds: float, tick: Callable[[], None] = lambda: None
) -> list[int]:
    """Wait until no worker of ``ranks`` writes any more; return those that never appeared.

    Args:
        directory: of the run.
        ranks: the workers.
        start_seconds: how long to wait for the file of a worker to appear.
        tick: called at every look.
    """
    begin = time.monotonic()
    missing, left = [], list(ranks)
    while left:
        for rank in list(left):
            path = rank_file(directory, rank)
            if path.exists():
                if _unheld(path):
                    left.remove(rank)
            elif time.monotonic() - begin > start_seconds:
                missing.append(rank)
                left.remove(rank)
        tick()
        if left:
            time.sleep(_POLL)
    return missing


def _unheld(path: Path) -> bool:
    with open(path, "rb") as file:
        return try_lock(file.fileno(), shared=True)


def merge(directory: Path, order: Sequence[str]) -> list[Record]:
    """Write every turn on disk into ``turns.jsonl`` in the order of the plan; remove the workers' files.

    Returns:
        the records, in that order.
    """
    turns = collect(directory)
    records = [turns[name] for name in order if name in turns]
    text = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
    files.write_text(directory / MERGED, text)
    for path in directory.glob("turns.rank*.jsonl"):
        path.unlink()
    return records
