"""Which decoders are compared with ours, and what each needs."""

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_eagle.checkpoints import cache as model_cache
from ms_eagle.config.sections import Config
from ms_eagle.drafters.registry import NONE, kind_of
from ms_eagle.errors import UserError
from ms_eagle.system import home
from ms_eagle.system.progress import Progress

TEACHER = "ms_eagle"
LOOKUP_TOKENS = 10  # the number that transformers' documentation uses
EXPORT_VERSION = 1  # part of the cache key: raise it whenever `gguf.exporting` would write another file
_INSTALL = "pip install -e '.[peers]' in the clone"
_COMPILES = " (compiles llama.cpp: needs a C++ compiler and takes minutes)"


@dataclass(frozen=True)
class Peer:
    """A decoder to run.

    Attributes:
        name: what it is called in tables and on command lines.
        kind: its class, a key of ``models.KINDS``.
        packages: modules that must be importable.
        settings: makes the arguments of its class; may convert files and raise UserError.
        optional: left out unless it is asked for by name.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    settings: Callable[[Progress], dict[str, Any]]
    optional: bool = False

    def missing(self) -> str | None:
        """Why it cannot run here, with the command that helps; None if everything is installed."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        hint = _INSTALL + (_COMPILES if "llama_cpp" in absent else "")
        return f"{' and '.join(absent)} not installed: {hint}" if absent else None


def peers(config: Config, directory: Path, capacity: int, assistant: str | None) -> list[Peer]:
    """Every decoder that applies, ours first.

    Args:
        config: as `benchmark_config` makes it.
        directory: the model's Hugging Face directory.
        capacity: most tokens of a prompt and its answer together.
        assistant: Hugging Face directory of a smaller model with the same tokenizer, for transformers.
    """
    threads = config.execution.threads
    plain = {"directory": str(directory), "threads": threads}

    def ours(kind: str) -> Callable[[Progress], dict[str, Any]]:
        chosen = config.model_copy(update={"drafter": config.drafter.model_copy(update={"kind": kind})})
        return lambda progress: {"config": chosen.model_dump(mode="json")}

    def transformers(name: str, optional: bool = False, **options: Any) -> Peer:
        settings = {**plain, **options}
        return Peer(name, "transformers", ("torch", "transformers"), lambda progress: settings, optional)

    def llama_cpp(progress: Progress) -> dict[str, Any]:
        path = _gguf(config, directory, progress)
        return {"path": str(path), "threads": threads, "capacity": capacity}

    known = [Peer(TEACHER, "engine", (), ours(NONE))]
    if kind_of(config).drafts:
        known.append(Peer(f"{TEACHER}-{config.drafter.kind}", "engine", (), ours(config.drafter.kind)))
    known += [
        transformers("transformers"),
        transformers("transformers-static", capacity=capacity),
        transformers("transformers-compiled", optional=True, capacity=capacity, compiled=True),
        transformers("transformers-lookup", lookup=LOOKUP_TOKENS),
    ]
    if assistant is not None:
        known.append(transformers("transformers-assisted", assistant=assistant))
    return [*known, Peer("llama.cpp", "llama.cpp", ("llama_cpp",), llama_cpp)]


def choose(known: list[Peer], names: list[str] | None) -> list[Peer]:
    """Those of ``known`` that ``names`` lists, in the order of ``known``; for None all that are not optional.

    Raises:
        UserError: a name that is not among them.
    """
    for name in names or []:
        if name not in [peer.name for peer in known]:
            raise UserError(
                f"there is no peer {name!r} for this configuration; expected some of "
                f"{', '.join(peer.name for peer in known)}"
            )
    return [peer for peer in known if (not peer.optional if names is None else peer.name in names)]


def benchmark_config(config: Config, threads: int) -> Config:
    """``config`` for one greedy sequence at a time in float32 on ``threads`` CPU threads.

    Raises:
        UserError: it asks for another number format, or for an NPU.
    """
    if config.model.dtype != "float32":
        raise UserError(
            f"model.dtype is {config.model.dtype}, but peers are compared in float32: set model.dtype=float32"
        )
    if config.execution.device == "Ascend":
        raise UserError(
            "execution.device is Ascend, but peers are compared on the CPU: set execution.device=CPU"
        )
    changes = {"device": "CPU", "threads": threads, "batch_size": 1, "mode": "performance", "trace": None}
    model = config.model.model_copy(update={"weights": "float32"})
    execution = config.execution.model_copy(update=changes)
    return config.model_copy(update={"model": model, "execution": execution})


def cache_directory(config: Config) -> Path:
    """Where converted models are kept."""
    place = config.model.cache_dir
    return model_cache.default_directory() if place is None else home.expanded(place)


def _gguf(config: Config, directory: Path, progress: Progress) -> Path:
    """The model as a float32 GGUF file, converted once into the cache."""
    described = [*directory.glob("*.safetensors"), directory / "config.json"]
    stats = [(path.name, path.stat()) for path in sorted(described)]
    identity: dict[str, object] = {
        "source": f"{directory.resolve()} as gguf",
        "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        "exporter": EXPORT_VERSION,
    }
    key = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:12]

    def build(model: Path, _scratch: Path) -> None:
        from ms_eagle.checkpoints.gguf.exporting import export  # slow to import and only needed to convert

        export(directory, model / "model.gguf", progress)

    name = f"{model_cache.safe_name(directory.name)[:80]}-gguf-{key}"
    return model_cache.obtain(cache_directory(config), name, identity, build, progress) / "model.gguf"
