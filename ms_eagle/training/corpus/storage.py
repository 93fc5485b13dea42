"""A corpus: conversations as token ids, which of them the teacher wrote, and what they were made with.

One compressed ``.npz`` file holds everything (docs/corpus.md). Conversation ``i`` is
``ids[offsets[i]:offsets[i + 1]]``: chat template and special tokens included, exactly what the teacher read
and wrote. ``role`` is 1 on the teacher's own tokens, the closing end token included.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.npz import DAMAGE, read_npz
from ms_eagle.system.progress import Progress
from ms_eagle.training.corpus.provenance import Provenance, Record, check_same, identity

if TYPE_CHECKING:  # these import mindspore, which a reader of a corpus need not wait for
    from ms_eagle.config.sections import Config
    from ms_eagle.loading import Model

SCHEMA = 1
_ARRAYS = ("ids", "role", "offsets", "source", "source_names")


class CorpusManifest(Record):
    """What a corpus file says about itself.

    Attributes:
        schema_version: of the file's format.
        sha256: over the contents, see `contents_sha256`.
        provenance: what it was made with.
        conversations, answer_tokens: how many, by source.
        dropped: how many conversations were left out, by reason.
    """

    schema_version: int
    sha256: str
    provenance: Provenance
    conversations: dict[str, int]
    answer_tokens: dict[str, int]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Row:
    """One conversation on its way into a corpus.

    Attributes:
        key: says which work it is the result of, such as ``self:17``; unique in a corpus.
        source: name of where the user turns came from.
        ids: its tokens.
        answers: ``(start, end)`` of every run of the teacher's tokens in ``ids``.
    """

    key: str
    source: str
    ids: Sequence[int]
    answers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Corpus:
    """A corpus in memory; n conversations, T tokens.

    Attributes:
        ids: ``[T]`` uint16, or uint32 for vocabularies beyond 65536.
        role: ``[T]`` uint8, 1 where the teacher wrote the token.
        offsets: ``[n + 1]`` int64, rising from 0 to T.
        source: ``[n]`` uint8, index into ``source_names``.
        source_names: where user turns came from.
        manifest: what it was made with.
        keys: which work each conversation is the result of, n of them or none.
        dropped: reasons by the key of a conversation that was left out.
    """

    ids: np.ndarray
    role: np.ndarray
    offsets: np.ndarray
    source: np.ndarray
    source_names: tuple[str, ...]
    manifest: CorpusManifest
    keys: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __len__(self) -> int:
        """Number of conversations."""
        return len(self.source)

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the contents; checked when a file is read."""
        return self.manifest.sha256

    def rows(self) -> list[Row]:
        """Every conversation as a `Row`, in order."""
        keys = self.keys or tuple(f"row:{number}" for number in range(len(self)))
        bounds = zip(self.offsets[: len(self)], self.offsets[1:], strict=True)
        return [
            Row(
                key,
                self.source_names[source],
                self.ids[start:end].tolist(),
                answer_runs(self.role[start:end]),
            )
            for key, source, (start, end) in zip(keys, self.source, bounds, strict=True)
        ]

    def check_teacher(self, model: "Model", config: "Config", progress: Progress | None = None) -> None:
        """Refuse a teacher, tokenizer or chat template that the corpus was not made with.

        Raises:
            UserError: names what differs with both hashes.
        """
        check_same(self.manifest.provenance, identity(model, config, progress), "the corpus")


def answer_runs(role: np.ndarray) -> tuple[tuple[int, int], ...]:
    """``(start, end)`` of every run of ones of a conversation's roles ``[t]``."""
    edges = np.flatnonzero(np.diff(role.astype(np.int8), prepend=0, append=0)).tolist()
    return tuple(zip(edges[0::2], edges[1::2], strict=True))


def build(rows: Sequence[Row], provenance: Provenance, dropped: Mapping[str, str]) -> Corpus:
    """Join conversations into a corpus, in their order.

    Args:
        rows: at least one; each with its own key.
        provenance: what all of them were made with.
        dropped: reasons by key, of conversations left out.

    Raises:
        UserError: there are no conversations, or too many sources.
    """
    if not rows:
        raise UserError(
            f"no conversation is left for the corpus ({len(dropped)} were dropped); ask for more of them"
        )
    names = tuple(dict.fromkeys(row.source for row in rows))
    if len(names) > 256:
        raise UserError(
            f"the corpus would have {len(names)} sources; expected at most 256: join prompt files"
        )
    places = {name: number for number, name in enumerate(names)}
    offsets = np.cumsum([0] + [len(row.ids) for row in rows], dtype=np.int64)
    role = np.zeros(offsets[len(rows)], np.uint8)
    for row, offset in zip(rows, offsets, strict=False):
        for start, end in row.answers:
            role[offset + start : offset + end] = 1
    width = np.uint16 if provenance.vocab_size <= 1 << 16 else np.uint32
    ids = np.concatenate([np.asarray(row.ids, width) for row in rows])
    source = np.array([places[row.source] for row in rows], np.uint8)
    tokens = {name: 0 for name in names}
    for row in rows:
        tokens[row.source] += sum(end - start for start, end in row.answers)
    manifest = CorpusManifest(
        schema_version=SCHEMA,
        sha256=contents_sha256(ids, role, offsets, source, names),
        provenance=provenance,
        conversations=dict(Counter(row.source for row in rows)),
        answer_tokens=tokens,
        dropped=dict(Counter(dropped.values())),
    )
    keys = tuple(row.key for row in rows)
    return Corpus(ids, role, offsets, source, names, manifest, keys, MappingProxyType(dict(dropped)))


def contents_sha256(
    ids: np.ndarray, role: np.ndarray, offsets: np.ndarray, source: np.ndarray, names: Sequence[str]
) -> str:
    """Hexadecimal SHA-256 over a corpus' arrays: independent of the width of ``ids`` and of compression."""
    digest = hashlib.sha256(json.dumps(list(names)).encode())
    for array, kind in ((ids, "<u4"), (role, "u1"), (offsets, "<i8"), (source, "u1")):
        digest.update(np.ascontiguousarray(array.astype(kind)).tobytes())
    return digest.hexdigest()


def write_corpus(path: Path, corpus: Corpus) -> None:
    """Write a corpus atomically: on any failure an older file at ``path`` stays as it was.

    Raises:
        UserError: the file cannot be written, for example because the disk is full.
    """
    journal = {"keys": corpus.keys, "dropped": dict(corpus.dropped)}
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        ids=corpus.ids,
        role=corpus.role,
        offsets=corpus.offsets,
        source=corpus.source,
        source_names=np.array(corpus.source_names),
        manifest=np.array(corpus.manifest.model_dump_json()),
        journal=np.array(json.dumps(journal)),
    )
    try:
        files.write_bytes(path, packed.getvalue())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was there before is untouched: "
            "make room or name another place, and run again"
        ) from error


def read_corpus(path: Path) -> Corpus:
    """Read a corpus file and check all of it.

    Raises:
        UserError: the file cannot be read, is damaged, holds no conversations, has no manifest, or is of
            another schema.
    """
    arrays = read_arrays(path, ("manifest", "journal"))
    text = arrays["manifest"]
    if text is None:
        raise UserError(
            f"{path} has no manifest, so nothing says which teacher made it; adopt it with "
            "tools/make_corpus.py --import, which checks that"
        )
    version = _json(path, text).get("schema_version")
    if version != SCHEMA:
        raise UserError(f"{path} is a corpus of schema {version!r}; expected {SCHEMA}: make it again")
    try:
        manifest = CorpusManifest.model_validate_json(str(text))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise _damaged(path, f"its manifest is not valid at {place}") from error
    names = tuple(map(str, arrays["source_names"]))
    ids, role, offsets, source = (arrays[name] for name in ("ids", "role", "offsets", "source"))
    if manifest.sha256 != contents_sha256(ids, role, offsets, source, names):
        raise _damaged(path, "its contents do not match the hash of its manifest")
    if int(ids.max()) >= manifest.provenance.vocab_size:
        raise _damaged(path, f"it holds the id {ids.max()} beyond the teacher's vocabulary")
    journal = {} if arrays["journal"] is None else _json(path, arrays["journal"])
    keys, dropped = journal.get("keys"), journal.get("dropped")
    if not isinstance(keys, list) or len(keys) not in (0, len(source)) or not isinstance(dropped, dict):
        raise _damaged(path, "its journal does not match its conversations")
    return Corpus(ids, role, offsets, source, names, manifest, tuple(keys), MappingProxyType(dropped))


def read_arrays(path: Path, further: Sequence[str] = ()) -> dict[str, Any]:
    """The arrays of a corpus file, with or without a manifest, checked against each other.

    Args:
        path: the ``.npz`` file; nothing in it is ever unpickled.
        further: names of text arrays that may be there.

    Returns: every array by name; None for one of ``further`` that is not there.

    Raises:
        UserError: the file cannot be read, is damaged, or holds no conversations.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a corpus (.npz): make one with tools/make_corpus.py")
    try:
        arrays = read_npz(path, (*_ARRAYS, *further))
    except PermissionError as error:
        raise UserError(f"{path}: {error.strerror}; expected a readable corpus") from error
    except DAMAGE as error:
        raise _damaged(path, f"it is not a whole .npz file ({error})") from error
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise UserError(f"{path} has no array {missing[0]!r}; expected those of docs/corpus.md")
    _check_arrays(path, arrays)
    return {**dict.fromkeys(further), **arrays}


def _check_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Types, shapes and ranges of the arrays themselves."""
    ids, role, offsets, source, names = (arrays[name] for name in _ARRAYS)
    if not all(array.ndim == 1 for array in (ids, role, offsets, source, names)):
        raise _damaged(path, "its arrays are not one-dimensional")
    if ids.dtype.kind not in "iu" or role.dtype != np.uint8 or offsets.dtype != np.int64:
        raise _damaged(path, "its arrays are not integers of the right types")
    if source.dtype != np.uint8 or names.dtype.kind != "U":
        raise _damaged(path, "its sources are not indices and names")
    if len(source) == 0:
        raise UserError(f"{path} holds no conversations; make a corpus with tools/make_corpus.py")
    lengths = np.diff(offsets)
    if len(offsets) != len(source) + 1 or offsets[0] != 0 or int(offsets.max()) != len(ids):
        raise _damaged(path, "its offsets do not cover its tokens")
    if lengths.min() <= 0 or len(role) != len(ids) or role.max() > 1:
        raise _damaged(path, "its offsets or roles do not fit its tokens")
    if int(source.max()) >= len(names) or (ids.dtype.kind == "i" and ids.min() < 0):
        raise _damaged(path, "it holds a source or an id out of range")


def _json(path: Path, text: np.ndarray) -> dict[str, Any]:
    try:
        content = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its manifest is not JSON") from error
    if not isinstance(content, dict):
        raise _damaged(path, "its manifest is not a JSON object")
    return content


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged or no corpus: {what}; restore the file or make it again")
