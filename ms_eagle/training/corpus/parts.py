"""Finished work of a run that is still under way: small files in a folder beside the corpus.

A part appears whole or not at all, so a killed run loses only what it had not finished. The folder also says
what its parts were made with, and is locked while a run writes to it; the system releases the lock of a dead
one.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from pydantic import Field, ValidationError

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.locks import try_lock
from ms_eagle.training.corpus.provenance import Provenance, Record, check_settings
from ms_eagle.training.corpus.storage import Row

_PROVENANCE = "provenance.json"
_PARTS = "[0-9]*.json"


class Outcome(Record):
    """What became of one piece of work.

    Attributes:
        kind: ``row`` for a finished conversation, ``turn`` for a sampled user turn, ``dropped``.
        key: names the work.
        source, ids, answers: of a row.
        text: words of a turn, or why it was dropped.
    """

    kind: Literal["row", "turn", "dropped"]
    key: str
    source: str = ""
    ids: list[int] = Field(default_factory=list)
    answers: list[list[int]] = Field(default_factory=list)
    text: str = ""

    @classmethod
    def of_row(cls, row: Row) -> "Outcome":
        """The outcome that a conversation is."""
        return cls(
            kind="row",
            key=row.key,
            source=row.source,
            ids=list(row.ids),
            answers=[list(run) for run in row.answers],
        )

    def row(self) -> Row:
        """The conversation of a ``row``."""
        return Row(self.key, self.source, self.ids, tuple((start, end) for start, end in self.answers))


class _Part(Record):
    outcomes: list[Outcome]


class Parts:
    """The folder of one corpus file; a context that holds its lock.

    Attributes:
        folder: where the parts are.
    """

    def __init__(self, corpus: Path, provenance: Provenance) -> None:
        """Name the folder; it is made when the context is entered."""
        self.folder = corpus.with_name(f"{corpus.name}.parts")
        self._provenance = provenance
        self._next = 0

    def __enter__(self) -> "Parts":
        """Make or reopen the folder.

        Raises:
            UserError: another run writes there, the folder is of other settings, or it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror}; name another --out") from error
        try:
            self._open()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self._lock.close()

    def _open(self) -> None:
        if not try_lock(self._lock.fileno()):
            raise UserError(f"another run writes {self.folder}: wait for it, or name another --out")
        header = self.folder / _PROVENANCE
        if not header.exists():
            self._write(header, self._provenance.model_dump_json(indent=2))
        check_settings(self._read(header, Provenance), self._provenance, str(self.folder))

    def outcomes(self) -> Iterator[Outcome]:
        """Everything that earlier runs finished, in the order in which they did.

        Raises:
            UserError: a part is damaged.
        """
        for path in sorted(self.folder.glob(_PARTS)):
            self._next = int(path.stem) + 1
            yield from self._read(path, _Part).outcomes

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Write a further part; call it after ``outcomes`` has been read to its end.

        Raises:
            UserError: it cannot be written; earlier parts are untouched.
        """
        part = _Part(outcomes=list(outcomes))
        self._write(self.folder / f"{self._next:06d}.json", part.model_dump_json(exclude_defaults=True))
        self._next += 1

    def remove(self) -> None:
        """Remove the folder: the corpus file holds everything in it."""
        shutil.rmtree(self.folder)

    def _write(self, path: Path, text: str) -> None:
        try:
            files.write_text(path, text)
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror}; finished work is kept: make room and run again"
            ) from error

    def _read(self, path: Path, schema: type[Record]) -> Record:
        try:
            return schema.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{path} is damaged; remove it to do its work again, or the folder to begin anew"
            ) from error
