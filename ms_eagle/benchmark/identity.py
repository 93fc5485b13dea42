"""What makes two runs the same run: a directory is continued only by a command that asks for the same."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.paths import PACKAGE
from ms_eagle.system import files, json_file
from ms_eagle.system.provenance import manifest, revision

SCHEMA = 1
FILE = "manifest.json"
_GIGABYTE = 1e9


def identity(config: Config, prompts: Sequence[Path], limit: int | None) -> dict[str, Any]:
    """Everything that a run's figures depend on and that a user can change, as JSON values.

    Args:
        config: the whole configuration.
        prompts: the prompt files.
        limit: how many turns of them, or None.
    """
    described = manifest(config.model_dump(mode="json"), {})
    return {
        "config": described["config"],
        "prompts": [{"file": path.name, "sha256": files.sha256(path)} for path in prompts],
        "limit": limit,
        "versions": described["versions"],
        "code": code(PACKAGE),
        "machine": machine(),
    }


def code(package: Path) -> dict[str, str] | None:
    """Git's hashes of the package's and the kernels' sources as committed; None outside a checkout.

    A commit that changes only other files, such as documents, leaves them as they are.
    """
    if revision(package) is None:
        return None
    names = ("ms_eagle", "kernels")
    command = ["git", "-C", str(package.parent), "rev-parse", *(f"HEAD:{name}" for name in names)]
    try:
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(names, done.stdout.split(), strict=True))


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and memory in gigabytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIGABYTE
    return {
        "cpu": _processor(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
        "system": platform.system(),
    }


def _processor(path: Path) -> str:
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    except OSError:  # no /proc: not Linux, or hidden from us
        pass
    return platform.processor() or platform.machine()


def claim(directory: Path, own: Mapping[str, Any]) -> None:
    """Begin a run in ``directory``, or go on with the one that is there.

    Args:
        directory: made if it is not there.
        own: this run's `identity`.

    Raises:
        UserError: the directory cannot be made, or holds another run or turns of unknown origin.
    """
    path = directory / FILE
    stray = any(directory.glob("turns*.jsonl"))  # before looking for the manifest: workers begin together
    if path.exists():
        known = json_file.read_object(path)
        if known.get("schema") != SCHEMA:
            raise UserError(
                f"{path}: found schema {known.get('schema')}, expected {SCHEMA}; name another --out"
            )
        where = difference(known.get("identity", {}), own)
        if where is not None:
            raise UserError(f"{directory} holds another run: {where}; name another --out, or remove it")
        return
    if stray:
        raise UserError(f"{directory} holds turns but no {FILE}; name another --out, or remove it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        json_file.write_object(path, {"schema": SCHEMA, "identity": own})
    except OSError as error:
        raise UserError(f"--out: cannot write {directory}: {error.strerror}") from error


def difference(known: Any, own: Any, name: str = "") -> str | None:
    """The first place where two JSON values differ, in words; None where they are the same."""
    if isinstance(known, dict) and isinstance(own, dict):
        for key in [*known, *(key for key in own if key not in known)]:
            inner = f"{name}.{key}" if name else str(key)
            where = difference(known.get(key), own.get(key), inner)
            if where is not None:
                return where
        return None
    if known == own:
        return None
    return f"its {name} is {_short(known)}, here it is {_short(own)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
