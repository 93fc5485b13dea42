"""The files of a feature cache, and whose features they hold.

A cache is a folder: flat float16 files in the order of the corpus, ``taps.f16`` ``[T, F]`` and ``final.f16``
``[T, E]``; ``features.json``, which says what they are of; ``conversations.npz``, the token ids they belong
to; ``checksums.npy``, int64 ``[n]``, -1 for a conversation that is not done.
"""

import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import files, json_file
from ms_eagle.system.npz import DAMAGE, read_npz
from ms_eagle.training.features.source import Conversations
from ms_eagle.training.features.teacher import Features

NAMES = ("taps", "final")
_VERSION = 1


@dataclass(frozen=True)
class Kind:
    """What features depend on besides the conversations.

    Attributes:
        teacher: hash of its weights.
        taps: blocks whose inputs are kept.
    """

    teacher: str
    taps: tuple[int, ...]

    def record(self, corpus: Conversations) -> dict[str, object]:
        """What ``features.json`` says of features of this kind over a corpus."""
        return {
            "version": _VERSION,
            "teacher": self.teacher,
            "conversations": conversations_hash(corpus),
            "taps": list(self.taps),
        }


def conversations_hash(corpus: Conversations) -> str:
    """Hexadecimal SHA-256 of token ids and of where conversations begin."""
    digest = hashlib.sha256()
    digest.update(np.ascontiguousarray(corpus.offsets, "<i8").data)
    digest.update(np.ascontiguousarray(corpus.ids, "<i4").data)
    return digest.hexdigest()


class Layout:
    """The files of one folder, for one corpus.

    Attributes:
        folder: where they are.
        offsets: int64 ``[n + 1]``, where conversations begin and end.
        widths: values of a token in the file of each of ``NAMES``.
    """

    def __init__(self, folder: Path, offsets: np.ndarray, widths: dict[str, int]) -> None:
        """Name the files; nothing is read."""
        self.folder, self.offsets, self.widths = folder, offsets, widths

    @classmethod
    def read(cls, folder: Path, kind: Kind, corpus: Conversations) -> "Layout":
        """Read what a folder says of itself.

        Raises:
            UserError: there is nothing, it is of something else, or a file has the wrong size.
        """
        record = json_file.read_object(folder / "features.json")
        for key, value in kind.record(corpus).items():
            if record.get(key) != value:
                raise UserError(
                    f"{folder}/features.json: {key} is {record.get(key)}, expected {value}: these features "
                    "belong to something else; name another folder or remove this one."
                )
        widths = record.get("widths")
        if not _are_widths(widths):
            raise UserError(f"{folder}/features.json: widths is {widths!r}; remove the folder and run again.")
        layout = cls(folder, corpus.offsets, widths)
        for name in NAMES:
            path, size = layout.path(name), layout.size(name)
            stored = path.stat().st_size if path.exists() else 0
            if stored != size:
                raise UserError(
                    f"{path} has {stored} bytes, expected {size}: remove the folder and run again."
                )
        return layout

    @property
    def tokens(self) -> int:
        """T."""
        return int(self.offsets[-1])

    def path(self, name: str) -> Path:
        """The file of one of ``NAMES``."""
        return self.folder / f"{name}.f16"

    def size(self, name: str) -> int:
        """Bytes of the file of one of ``NAMES``."""
        return 2 * self.widths[name] * self.tokens

    def read_checksums(self) -> np.ndarray:
        """int64 ``[n]``; -1 where a conversation is not done.

        Raises:
            UserError: the file is damaged.
        """
        path, count = self.folder / "checksums.npy", len(self.offsets) - 1
        if not path.exists():
            return np.full(count, -1, np.int64)
        try:
            checksums = np.load(path, allow_pickle=False)
        except DAMAGE as error:
            raise UserError(f"{path} is damaged ({error}); remove the folder and run again.") from error
        if checksums.dtype != np.int64 or checksums.shape != (count,):
            raise UserError(
                f"{path} holds {checksums.dtype} of shape {list(checksums.shape)}, expected int64 of "
                f"[{count}]; remove the folder and run again."
            )
        return checksums

    def write_checksums(self, checksums: np.ndarray) -> None:
        """Replace them."""
        target = io.BytesIO()
        np.save(target, checksums)
        files.write_bytes(self.folder / "checksums.npy", target.getvalue())


class Stored:
    """The features in a folder, memory-mapped.

    Attributes:
        checksums: int64 ``[n]``, -1 where a conversation is not done.
    """

    def __init__(self, layout: Layout) -> None:
        """Open the files of a layout that ``Layout.read`` has checked."""
        self.checksums = layout.read_checksums()
        self._layout = layout
        self._maps = [
            np.memmap(layout.path(name), np.float16, "r", shape=(layout.tokens, layout.widths[name]))
            for name in NAMES
        ]

    def read(self, number: int) -> Features:
        """Features of a conversation that is done.

        Raises:
            UserError: its bytes have changed since they were written.
        """
        begin, end = self._layout.offsets[number], self._layout.offsets[number + 1]
        features = Features(*(stored[begin:end] for stored in self._maps))
        if checksum(features) != self.checksums[number]:
            raise UserError(
                f"{self._layout.folder}: the features of conversation {number} are damaged; remove the "
                "folder and run again to compute them anew."
            )
        return features


def checksum(features: Features) -> int:
    """CRC-32 of the bytes of both."""
    first = zlib.crc32(np.ascontiguousarray(features.taps))
    return zlib.crc32(np.ascontiguousarray(features.final), first)


def write_conversations(folder: Path, corpus: Conversations) -> None:
    """Write down what the features in a folder are of, so that others can use them."""
    target = io.BytesIO()
    np.savez_compressed(target, ids=corpus.ids, offsets=corpus.offsets)
    files.write_bytes(folder / "conversations.npz", target.getvalue())


@dataclass(frozen=True)
class StoredConversations:
    """See ``features.Conversations``."""

    ids: np.ndarray
    offsets: np.ndarray


def read_conversations(path: Path) -> StoredConversations:
    """Read what ``write_conversations`` wrote.

    Raises:
        UserError: the file is damaged.
    """
    try:
        arrays = read_npz(path)
        return StoredConversations(arrays["ids"], arrays["offsets"])
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({error}); remove its folder.") from error


def _are_widths(widths: object) -> bool:
    return (
        isinstance(widths, dict)
        and tuple(widths) == NAMES
        and all(type(width) is int and width > 0 for width in widths.values())
    )
