"""A checkpoint: everything that the rest of a run depends on, in one file that is replaced whole."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.npz import DAMAGE, read_npz

_PROGRESS = "progress"


@dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
        step: steps taken.
        seconds: they took, pauses left out.
        best_step, best_accept: after which step the best evaluation was, and its simulated accept length;
            -1 before the first evaluation.
    """

    step: int = 0
    seconds: float = 0.0
    best_step: int = -1
    best_accept: float = -1.0


def save(path: Path, progress: RunProgress, state: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint; on any failure an older one at ``path`` stays as it was.

    Args:
        path: an ``.npz`` file.
        progress: how far the run is.
        state: arrays of the trainer, by any names but ``progress``.

    Raises:
        UserError: a value is not finite, or the file cannot be written, for example because the disk is full.
    """
    for name, values in state.items():
        if not np.isfinite(values).all():
            raise UserError(
                f"after step {progress.step} the training state {name} holds NaN or infinity: {path} is left "
                "as it was; lower optimization.learning_rate and start a new run."
            )
    numbers = [progress.step, progress.seconds, progress.best_step, progress.best_accept]
    packed = io.BytesIO()
    np.savez(packed, **{_PROGRESS: np.array(numbers, np.float64)}, **state)
    try:
        files.write_bytes(path, packed.getbuffer())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; the checkpoint that was there is untouched: make room "
            "and run the same command again to continue from it."
        ) from error


def load(path: Path) -> tuple[RunProgress, dict[str, np.ndarray]]:
    """Read a checkpoint: how far the run is, and the trainer's state.

    Raises:
        UserError: the file is damaged; every array carries a checksum.
    """
    try:
        state = read_npz(path)
        step, seconds, best_step, best_accept = state.pop(_PROGRESS).tolist()
    except (AttributeError, TypeError, *DAMAGE) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or remove the run's directory to start anew."
        ) from error
    return RunProgress(int(step), seconds, int(best_step), best_accept), state
