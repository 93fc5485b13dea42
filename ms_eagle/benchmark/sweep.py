"""Ablations: one benchmark after the other over points of a configuration, each a run that resumes.

A sweep is a YAML file (``configs/bench/``): what it asks, which keys change, and what is drawn.
"""

import gc
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ms_eagle.benchmark.figures import summary
from ms_eagle.benchmark.run import Job, run
from ms_eagle.benchmark.runner import FAILURES
from ms_eagle.config import schema, strict_yaml
from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.progress import Progress

_HEADLINES = ("turns", "failed", "tokens_match", "speedup", "accept_L", "baseline_tps", "speculative_tps")

Configure = Callable[[Sequence[str]], Config]
"""Makes the configuration with further overrides, ``section.key=value`` each."""


class Point(BaseModel):
    """One setting of a sweep: a name and the keys that it sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1, description="What it is called in tables and plots.")
    set: dict[str, Any] = Field({}, description="Configuration keys and their values.")


class Sweep(BaseModel):
    """What a file of ``configs/bench/`` says; ``grid`` and ``points`` together make the points."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str = Field(min_length=1, description="What is compared.")
    question: str = Field(min_length=1, description="What the answer is wanted for.")
    set: dict[str, Any] = Field({}, description="Keys that every point sets.")
    grid: dict[str, list[Any]] = Field({}, description="Keys with the values that are combined.")
    points: list[Point] = Field([], description="Points that no grid makes.")
    x: str | None = Field(None, description="The key of the grid that is drawn along the axis.")

    def all_points(self) -> list[Point]:
        """Every point, those of the grid first."""
        grid = []
        for values in itertools.product(*self.grid.values()) if self.grid else ():
            settings = dict(zip(self.grid, values, strict=True))
            name = ", ".join(f"{key.partition('.')[2]} {value}" for key, value in settings.items())
            grid.append(Point(name=name, set=settings))
        return [*grid, *self.points]


@dataclass(frozen=True)
class Measured:
    """A point and what came of it: the headline figures of its summary, or an error."""

    point: Point
    directory: str
    figures: Mapping[str, Any]


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep.

    Raises:
        UserError: the file cannot be read, is not YAML, or does not fit.
    """
    try:
        text = files.text_of(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"--sweep {path}: {error.strerror}; expected a file such as those in configs/bench"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"--sweep {path}: not UTF-8 (byte {error.start})") from error
    try:
        sweep = Sweep.model_validate(strict_yaml.parse(text, str(path)).value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UserError(
            f"{path}: {where}: {first['msg']}; expected {', '.join(Sweep.model_fields)}"
        ) from error
    known = schema.options(Config)
    points = sweep.all_points()
    for key in [*sweep.set, *(key for point in points for key in point.set)]:
        if key not in known:
            raise UserError(
                f"{path}: unknown key {key} (nearest valid key: {schema.nearest(key, list(known))})"
            )
    if not points:
        raise UserError(f"{path}: neither grid nor points; expected at least one setting to measure")
    if sweep.x is not None and sweep.x not in sweep.grid:
        raise UserError(f"{path}: x is {sweep.x}, which is not in grid")
    names = [slug(point.name) for point in points]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: two points are called {twice}; expected different names")
    return sweep


def slug(name: str) -> str:
    """A name as a directory's."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings as ``--set`` options."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]  # JSON is YAML


def run_sweep(
    sweep: Sweep, configure: Configure, job: Callable[[Config, Path], Job], out: Path, progress: Progress
) -> list[Measured]:
    """Measure every point that is not measured yet; one that fails is recorded and ends nothing.

    Args:
        sweep: what to measure.
        configure: see `Configure`.
        job: makes the run of a point in a directory.
        out: the directory of the sweep; points are in ``points/``.
        progress: shows it all.

    Raises:
        KeyboardInterrupt: Ctrl-C; a further call goes on from there.
    """
    measured = []
    points = sweep.all_points()
    for number, point in enumerate(points, 1):
        progress.note(f"point {number} of {len(points)}: {point.name}")
        directory = out / "points" / slug(point.name)
        try:
            config = configure(overrides({**sweep.set, **point.set}))
            figures = run(job(config, directory), progress).summary
        except FAILURES as error:
            message = " ".join(str(error).split())
            figures = {**summary([], None, {}), "error": message}
            progress.note(f"{point.name}: {message}")
        headlines = {key: figures[key] for key in (*_HEADLINES, "error") if key in figures}
        measured.append(Measured(point, str(directory.relative_to(out)), headlines))
        gc.collect()  # the engines of a point hold gigabytes
    return measured
