"""The directory of a run: what it was started with, and where its files are."""

from collections.abc import Mapping
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system import json_file
from ms_eagle.system.locks import FileLock
from ms_eagle.training.config import TrainingConfig

# What may differ when a run is continued: places, patience, and who is to read the head.
_FREE = ("data.teacher", "data.corpus", "data.features", "data.wait", "output.directory", "output.layout")


class RunFolder:
    """Paths of one run, held by one process.

    Attributes:
        directory: of the run.
        checkpoint: see ``run_checkpoint``.
        head: directory of the best head so far.
        curves: picture of the figures.
    """

    def __init__(self, directory: Path) -> None:
        """Name the paths; nothing is made yet."""
        self.directory = directory
        self.checkpoint, self.head = directory / "checkpoint.npz", directory / "head"
        self.curves = directory / "curves.svg"
        self._record = directory / "run.json"
        self._lock = FileLock(directory / "lock")

    def open(self, identity: Mapping[str, object]) -> None:
        """Take the directory for this process, and check that what is in it is of the same run.

        Args:
            identity: JSON values, see ``identity``.

        Raises:
            UserError: another process trains there; the directory holds something else, or a run that was
                started with another configuration, corpus or teacher.
        """
        if self.directory.exists() and not self._record.exists():
            others = sorted(p.name for p in self.directory.iterdir() if p.name != self._lock.path.name)
            if others:
                raise UserError(
                    f"output.directory: {self.directory} holds {others[0]}, but no run: name an empty or a "
                    "new directory."
                )
        self._lock.acquire(0, lambda line: None)
        if self._record.exists() and self.checkpoint.exists():  # without one there is nothing to continue
            self._check(json_file.read_object(self._record), identity)
        else:
            json_file.write_object(self._record, identity)
        for place in (self.directory, self.head):
            for unfinished in place.glob(".*.tmp"):  # of a run that was killed while it wrote
                unfinished.unlink()

    def _check(self, started: Mapping[str, object], asked: Mapping[str, object]) -> None:
        for key in {**asked, **started}:
            if started.get(key) != asked.get(key):
                raise UserError(
                    f"{self.directory} holds a run with {key}={started.get(key)}, this one has "
                    f"{asked.get(key)}: continue with that, or name another output.directory."
                )

    def close(self) -> None:
        """Let another process have the directory."""
        self._lock.release()


def identity(config: TrainingConfig, *, corpus: str, teacher: str, workers: int) -> dict[str, object]:
    """What makes a run that run: all that its numbers depend on, by dotted key.

    Args:
        config: of the run; where things are kept is left out.
        corpus, teacher: their hashes.
        workers: processes that train together.
    """
    options = {
        f"{section}.{key}": value
        for section, values in config.model_dump(mode="json").items()
        for key, value in values.items()
    }
    kept = {key: value for key, value in options.items() if key not in _FREE}
    return {"corpus_sha256": corpus, "teacher_sha256": teacher, "workers": workers, **kept}
