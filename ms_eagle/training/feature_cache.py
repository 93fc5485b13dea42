"""Features on disk: computed once, read in every epoch, resumed where a killed run stopped.

A cache is a folder of flat float16 files in the order of the corpus, ``taps.f16`` ``[T, F]`` and
``final.f16`` ``[T, E]``; ``features.json`` says whose they are, ``checksums.npy`` which conversations are
done. A conversation counts as done only when its bytes are on the disk, and its checksum is compared at
every read.
"""

import contextlib
import hashlib
import io
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ms_eagle import files, json_file
from ms_eagle.errors import UserError
from ms_eagle.progress import Progress, duration
from ms_eagle.training.features import Conversations, tokens
from ms_eagle.training.teacher_features import Features, TeacherFeatures

_VERSION = 1
_FILES = ("taps", "final")
_SAVE_SECONDS = 30.0


def cache_folder(parent: Path, teacher: str, corpus: Conversations, taps: Sequence[int]) -> Path:
    """The folder below ``parent`` of what one teacher makes of one corpus; other inputs, another folder.

    Args:
        teacher: hash of the teacher's weights.
        taps: blocks whose inputs are kept.
    """
    key = f"{teacher} {conversations_hash(corpus)} {','.join(map(str, taps))}"
    return parent / hashlib.sha256(key.encode()).hexdigest()[:16]


def conversations_hash(corpus: Conversations) -> str:
    """Hexadecimal SHA-256 of what features depend on: the token ids and where conversations begin."""
    digest = hashlib.sha256()
    digest.update(np.ascontiguousarray(corpus.offsets, "<i8").data)
    digest.update(np.ascontiguousarray(corpus.ids, "<i4").data)
    return digest.hexdigest()


class FeatureCache:
    """A `FeatureSource` over a complete cache, memory-mapped."""

    def __init__(self, folder: Path, teacher: str, corpus: Conversations, taps: Sequence[int]) -> None:
        """Open and check a cache.

        Args:
            folder: made by ``build``.
            teacher, corpus, taps: what it has to be of; see ``cache_folder``.

        Raises:
            UserError: there is none, it is of something else, incomplete, or a file has the wrong size.
        """
        layout = _Layout.read(folder, teacher, corpus, taps)
        self._checksums = layout.checksums()
        missing = int((self._checksums < 0).sum())
        if missing:
            raise UserError(
                f"{folder}: {missing} of {len(self._checksums)} conversations have no features yet; run the "
                "same training again to compute them."
            )
        self.taps = tuple(taps)
        self._folder, self._offsets = folder, corpus.offsets
        self._maps = [
            np.memmap(layout.path(name), np.float16, "r", shape=(layout.tokens, width))
            for name, width in layout.widths.items()
        ]

    def read(self, conversations: Sequence[int]) -> list[Features]:
        """See ``FeatureSource``.

        Raises:
            UserError: the stored bytes of a conversation have changed since they were written.
        """
        return [self._features(number) for number in conversations]

    def _features(self, number: int) -> Features:
        begin, end = self._offsets[number], self._offsets[number + 1]
        features = Features(*(stored[begin:end] for stored in self._maps))
        if _checksum(features) != self._checksums[number]:
            raise UserError(
                f"{self._folder}: the features of conversation {number} are damaged; remove the folder and "
                "run again to compute them anew."
            )
        return features


def build(
    folder: Path,
    teacher: str,
    corpus: Conversations,
    taps: Sequence[int],
    load: Callable[[], TeacherFeatures],
    progress: Progress,
    beat: Callable[[], None] = lambda: None,
) -> FeatureCache:
    """Complete the cache in ``folder`` where it is not, and open it.

    A run that was killed is continued; what it had not written to the disk is computed again.

    Args:
        folder, teacher, corpus, taps: see ``FeatureCache``.
        load: gives the teacher; called only if there is something to compute.
        progress: shows the tokens done and their rate.
        beat: is called whenever work has got ahead.

    Raises:
        UserError: the disk has no room, or as for ``FeatureCache`` and ``TeacherFeatures.compute``.
    """
    if not (folder / "features.json").exists() or (_Layout.read(folder, teacher, corpus, taps).missing()):
        reader = load()
        with _Writer(folder, teacher, corpus, taps, reader) as writer:
            writer.run(reader, progress, beat)
    return FeatureCache(folder, teacher, corpus, taps)


class _Layout:
    """What ``features.json`` says, and the files it speaks of."""

    def __init__(self, folder: Path, conversations: int, tokens: int, widths: dict[str, int]) -> None:
        self.folder, self.conversations, self.tokens, self.widths = folder, conversations, tokens, widths

    @classmethod
    def read(cls, folder: Path, teacher: str, corpus: Conversations, taps: Sequence[int]) -> "_Layout":
        """Read it and check it against what is wanted."""
        record = json_file.read_object(folder / "features.json")
        wanted = _identity(teacher, corpus, taps)
        for key, value in wanted.items():
            if record.get(key) != value:
                raise UserError(
                    f"{folder}/features.json: {key} is {record.get(key)}, expected {value}: these features "
                    "belong to something else; name another folder or remove this one."
                )
        widths = record.get("widths")
        if (
            not isinstance(widths, dict)
            or list(widths) != list(_FILES)
            or not all(map(_is_size, widths.values()))
        ):
            raise UserError(f"{folder}/features.json: widths is {widths!r}; remove the folder and run again.")
        layout = cls(folder, len(corpus.offsets) - 1, len(corpus.ids), widths)
        for name, width in widths.items():
            path, size = layout.path(name), 2 * width * layout.tokens
            found = path.stat().st_size if path.exists() else 0
            if found != size:
                raise UserError(
                    f"{path} has {found} bytes, expected {size}: remove the folder and run again."
                )
        return layout

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.f16"

    def checksums(self) -> np.ndarray:
        """int64 ``[n]``, -1 where a conversation is not done."""
        path = self.folder / "checksums.npy"
        if not path.exists():
            return np.full(self.conversations, -1, np.int64)
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged ({error}); remove the folder and run again.") from error
        if found.dtype != np.int64 or found.shape != (self.conversations,):
            raise UserError(
                f"{path} holds {found.dtype} of shape {list(found.shape)}, expected int64 of "
                f"[{self.conversations}]; remove the folder and run again."
            )
        return found

    def missing(self) -> bool:
        return bool((self.checksums() < 0).any())


class _Writer:
    """Fills a folder; a conversation's checksum is stored after its bytes have reached the disk."""

    def __init__(
        self, folder: Path, teacher: str, corpus: Conversations, taps: Sequence[int], reader: TeacherFeatures
    ) -> None:
        widths = dict(zip(_FILES, (reader.width * len(taps), reader.width), strict=True))
        self._layout = _Layout(folder, len(corpus.offsets) - 1, len(corpus.ids), widths)
        self._corpus, self._handles = corpus, contextlib.ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {name: self._open(name, width) for name, width in widths.items()}
        record = {**_identity(teacher, corpus, taps), "widths": widths}
        json_file.write_object(folder / "features.json", record)
        self._done = self._layout.checksums()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._handles.close()

    def _open(self, name: str, width: int) -> int:
        """A file of full size: room is taken now, so that the disk cannot run out hours later."""
        path, size = self._layout.path(name), 2 * width * self._layout.tokens
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._handles.callback(os.close, handle)
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            raise UserError(
                f"{path}: no room for {size / 1e9:.1f} GB of features ({error.strerror}): free some, name "
                "another folder for them, or train without a cache."
            ) from error
        return handle

    def run(self, reader: TeacherFeatures, progress: Progress, beat: Callable[[], None]) -> None:
        """Compute what is missing; arguments as for ``build``."""
        lengths = np.diff(self._corpus.offsets)
        missing = np.flatnonzero(self._done < 0)
        pending: dict[int, int] = {}
        begun = saved = time.monotonic()
        total, before = int(lengths.sum()), int(lengths[self._done >= 0].sum())
        reached = before
        with progress.steps("teacher's hidden states", total) as step:
            step.reach(before)
            for number, features in reader.compute((int(i), tokens(self._corpus, i)) for i in missing):
                self._write(number, features)
                pending[number] = _checksum(features)
                reached += int(lengths[number])
                rate = (reached - before) / max(time.monotonic() - begun, 1e-9)
                step.reach(reached)
                left = duration((total - reached) / rate)
                step.describe(f"teacher's hidden states, {rate:.0f} tokens/s, {left} left")
                beat()
                if time.monotonic() - saved > _SAVE_SECONDS:
                    self._save(pending)
                    saved = time.monotonic()
        self._save(pending)

    def _write(self, number: int, features: Features) -> None:
        for name, values in (("taps", features.taps), ("final", features.final)):
            at = 2 * self._layout.widths[name] * int(self._corpus.offsets[number])
            data = memoryview(np.ascontiguousarray(values)).cast("B")
            while data:
                written = os.pwrite(self._files[name], data, at)
                data, at = data[written:], at + written

    def _save(self, pending: dict[int, int]) -> None:
        for handle in self._files.values():
            os.fdatasync(handle)
        for number, checksum in pending.items():
            self._done[number] = checksum
        pending.clear()
        target = io.BytesIO()
        np.save(target, self._done)
        files.write_bytes(self._layout.folder / "checksums.npy", target.getvalue())


def _identity(teacher: str, corpus: Conversations, taps: Sequence[int]) -> dict[str, object]:
    return {
        "version": _VERSION,
        "teacher": teacher,
        "conversations": conversations_hash(corpus),
        "taps": list(taps),
    }


def _checksum(features: Features) -> int:
    first = zlib.crc32(np.ascontiguousarray(features.taps))
    return zlib.crc32(np.ascontiguousarray(features.final), first)


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0
