"""Features on disk: computed once, read in every epoch, resumed where a killed run stopped.

A conversation counts as done only when its bytes are on the disk, and its checksum is compared at every read.
A corpus that was extended takes what it shares with another one from that one's folder beside its own.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import json_file
from ms_eagle.system.progress import Progress, Step, duration
from ms_eagle.training.features.layout import (
    NAMES,
    Kind,
    Layout,
    Stored,
    checksum,
    conversations_hash,
    read_conversations,
    write_conversations,
)
from ms_eagle.training.features.source import Conversations, tokens
from ms_eagle.training.features.teacher import Features, TeacherFeatures

_SAVE_SECONDS = 30.0


def cache_folder(parent: Path, kind: Kind, corpus: Conversations) -> Path:
    """The folder below ``parent`` of what one teacher makes of one corpus; other inputs, another folder."""
    key = f"{kind.teacher} {conversations_hash(corpus)} {','.join(map(str, kind.taps))}"
    return parent / hashlib.sha256(key.encode()).hexdigest()[:16]


class FeatureCache:
    """A `FeatureSource` over a complete cache, memory-mapped."""

    def __init__(self, folder: Path, kind: Kind, corpus: Conversations) -> None:
        """Open and check a cache.

        Args:
            folder: made by ``build``.
            kind, corpus: what it has to be of.

        Raises:
            UserError: there is none, it is of something else, incomplete, or a file has the wrong size.
        """
        self.taps = kind.taps
        self._stored = Stored(Layout.read(folder, kind, corpus))
        missing = int((self._stored.checksums < 0).sum())
        if missing:
            raise UserError(
                f"{folder}: {missing} of {len(self._stored.checksums)} conversations have no features yet; "
                "run the same training again to compute them."
            )

    def read(self, conversations: Sequence[int]) -> list[Features]:
        """See ``FeatureSource``.

        Raises:
            UserError: the stored bytes of a conversation have changed since they were written.
        """
        return [self._stored.read(number) for number in conversations]


def build(
    folder: Path,
    kind: Kind,
    corpus: Conversations,
    load: Callable[[], TeacherFeatures],
    progress: Progress,
    beat: Callable[[], None] = lambda: None,
) -> FeatureCache:
    """Complete the cache in ``folder`` where it is not, and open it.

    A run that was killed is continued; what it had not written to the disk is computed again.

    Args:
        folder, kind, corpus: see ``FeatureCache``.
        load: gives the teacher; called only if there is something to compute.
        progress: shows the tokens done and their rate.
        beat: is called whenever work has got ahead.

    Raises:
        UserError: the disk has no room, or as for ``FeatureCache`` and ``TeacherFeatures.compute``.
    """
    if not (folder / "features.json").exists() or _is_incomplete(folder, kind, corpus):
        reader = load()
        with contextlib.ExitStack() as handles:
            _Writer(folder, kind, corpus, reader, handles).run(reader, progress, beat)
    return FeatureCache(folder, kind, corpus)


def _is_incomplete(folder: Path, kind: Kind, corpus: Conversations) -> bool:
    return bool((Layout.read(folder, kind, corpus).read_checksums() < 0).any())


class _Writer:
    """Fills a folder; a conversation's checksum is stored after its bytes have reached the disk."""

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        corpus: Conversations,
        reader: TeacherFeatures,
        handles: contextlib.ExitStack,
    ) -> None:
        widths = dict(zip(NAMES, (reader.width * len(kind.taps), reader.width), strict=True))
        self._layout = Layout(folder, corpus.offsets, widths)
        self._kind, self._corpus = kind, corpus
        self._lengths = np.diff(corpus.offsets)
        self._files = self._open(handles)
        write_conversations(folder, corpus)
        json_file.write_object(folder / "features.json", {**kind.record(corpus), "widths": widths})
        self._done = self._layout.read_checksums()
        self._pending: dict[int, int] = {}
        self._saved = time.monotonic()

    def _open(self, handles: contextlib.ExitStack) -> dict[str, int]:
        """Files of full size: room is taken now, so that the disk cannot run out hours later."""
        opened, new = {}, [p for p in map(self._layout.path, NAMES) if not p.exists()]
        total = sum(map(self._layout.size, NAMES))
        try:
            self._layout.folder.mkdir(parents=True, exist_ok=True)
            for name in NAMES:
                opened[name] = os.open(self._layout.path(name), os.O_RDWR | os.O_CREAT, 0o666)
                handles.callback(os.close, opened[name])
                os.posix_fallocate(opened[name], 0, self._layout.size(name))
        except OSError as error:
            for path in new:
                path.unlink(missing_ok=True)
            raise UserError(
                f"{self._layout.folder}: no room for {total / 1e9:.1f} GB of features ({error.strerror}): "
                "make room, name another data.features, or train without (data.features=null)."
            ) from error
        return opened

    def run(self, reader: TeacherFeatures, progress: Progress, beat: Callable[[], None]) -> None:
        """Compute what is missing and not to be had elsewhere; arguments as for ``build``."""
        missing = np.flatnonzero(self._done < 0)
        with progress.steps("looking for features of other corpora", len(missing)) as step:
            self._take(self._known(missing), beat, lambda count: step.advance())
        missing = np.flatnonzero(self._done < 0)
        with progress.steps("teacher's hidden states", int(self._lengths.sum())) as step:
            pace = _Pace(step, int(self._lengths[self._done >= 0].sum()), int(self._lengths.sum()))
            conversations = ((int(number), tokens(self._corpus, number)) for number in missing)
            self._take(reader.compute(conversations), beat, pace.add)

    def _take(
        self,
        computed: Iterable[tuple[int, Features]],
        beat: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
        for number, features in computed:
            self._write(number, features)
            self._pending[number] = checksum(features)
            advance(int(self._lengths[number]))
            beat()
            if time.monotonic() - self._saved > _SAVE_SECONDS:
                self._save()
        self._save()

    def _known(self, missing: np.ndarray) -> Iterator[tuple[int, Features]]:
        """What folders beside this one have of the conversations that are missing here."""
        numbers = {tokens(self._corpus, number).tobytes(): int(number) for number in missing}
        for index in sorted(self._layout.folder.parent.glob("*/conversations.npz")):
            if index.parent == self._layout.folder:
                continue
            try:
                corpus = read_conversations(index)
                stored = Stored(Layout.read(index.parent, self._kind, corpus))
                for number in np.flatnonzero(stored.checksums >= 0):
                    own = numbers.pop(tokens(corpus, number).tobytes(), None)
                    if own is not None:
                        yield own, stored.read(number)
            except UserError:
                continue  # of another kind, or damaged: what it lacks is computed

    def _write(self, number: int, features: Features) -> None:
        for name, values in zip(NAMES, (features.taps, features.final), strict=True):
            at = 2 * self._layout.widths[name] * int(self._corpus.offsets[number])
            data = memoryview(np.ascontiguousarray(values)).cast("B")
            while data:
                written = os.pwrite(self._files[name], data, at)
                data, at = data[written:], at + written

    def _save(self) -> None:
        for handle in self._files.values():
            os.fdatasync(handle)
        for number, value in self._pending.items():
            self._done[number] = value
        self._pending.clear()
        self._layout.write_checksums(self._done)
        self._saved = time.monotonic()


class _Pace:
    """Shows how many tokens are done, how fast, and when the rest will be."""

    def __init__(self, step: Step, done: int, total: int) -> None:
        self._step, self._before, self._done, self._total = step, done, done, total
        self._begin = time.monotonic()
        step.reach(done)

    def add(self, count: int) -> None:
        self._done += count
        rate = (self._done - self._before) / max(time.monotonic() - self._begin, 1e-9)
        left = duration((self._total - self._done) / rate)
        self._step.reach(self._done)
        self._step.describe(f"teacher's hidden states, {rate:.0f} tokens/s, {left} left")
