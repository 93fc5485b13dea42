"""What a run was made of: configuration, versions, device, code revision and weights."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ms_eagle import __version__
from ms_eagle.paths import PACKAGE
from ms_eagle.system import files
from ms_eagle.system.progress import Progress

_PACKAGES = ("mindspore", "mindformers", "numpy", "tokenizers", "sentencepiece")
_WEIGHTS = ("*.safetensors", "*.bin", "config.json")


def manifest(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a run, as JSON values.

    Args:
        config: the whole configuration as JSON values, defaults included.
        facts: what only the loaded run knows, added as it is: device, kernels, weights and the like.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": dict(config),
        "versions": versions(),
        "platform": platform.platform(),
        "git": revision(PACKAGE),
        **facts,
    }


def versions() -> dict[str, str]:
    """Versions of ourselves, Python, and the packages that computation depends on; those installed."""
    installed = {"ms_eagle": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def revision(directory: Path) -> dict[str, Any] | None:
    """The git commit that ``directory`` is checked out at, and whether files differ from it.

    None outside a checkout, or without git.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=10).stdout

    try:
        commit = git("rev-parse", "HEAD").strip()
        git("ls-files", "--error-unmatch", "__init__.py")  # not a checkout of something around us
        return {"commit": commit, "modified": bool(git("status", "--porcelain", "-uno").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def weight_hashes(
    directory: Path, progress: Progress | None = None, elsewhere: Sequence[Path] = ()
) -> list[dict[str, Any]]:
    """Name, size in bytes and SHA-256 of the weights and the configuration in a model directory.

    Args:
        directory: of the model.
        progress: for the hashing.
        elsewhere: files of weights that need not lie in it.
    """
    progress = progress or Progress(quiet=True)
    paths = sorted({path for pattern in _WEIGHTS for path in directory.glob(pattern)})
    paths += [path for path in elsewhere if path not in paths]
    with progress.bytes("hashing weights", sum(path.stat().st_size for path in paths)) as step:
        described = []
        for path in paths:
            size = path.stat().st_size
            described.append({"file": path.name, "bytes": size, "sha256": files.sha256(path)})
            step.advance(size)
    return described


def weights_hash(directory: Path, progress: Progress | None = None, elsewhere: Sequence[Path] = ()) -> str:
    """One hexadecimal SHA-256 for a model: of the names and hashes of its weights and configuration."""
    named = [[each["file"], each["sha256"]] for each in weight_hashes(directory, progress, elsewhere)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()
