"""A bundle on disk: which files it has to have, and that they are the ones it was made with."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ms_eagle.config.sections import Config, load_config
from ms_eagle.deployment.manifest import (
    FILE,
    FileRecord,
    Manifest,
    TreeRecord,
    check_numbers,
    read_manifest,
)
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import source_files
from ms_eagle.system import files

WEIGHTS = "weights.safetensors"
CONFIG = "config.yaml"
TOKENIZER = "tokenizer"
KERNELS = "kernels"
# What may be replaced when a bundle runs; everything else is compiled into it.
_FREE = (
    "generation.",
    "model.system_prompt",
    "model.thinking",
    *(f"execution.{key}" for key in ("threads", "device_id", "jit_level", "memory_limit", "deterministic")),
)


class Bundle:
    """An opened bundle: its manifest and every small file have been checked, the weights have not.

    Attributes:
        directory: where it is.
        manifest: what it says about itself.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self.manifest = directory, manifest

    @classmethod
    def open(cls, directory: Path, trust: bool | str = False) -> "Bundle":
        """Open a bundle.

        Args:
            directory: where it is.
            trust: what to make of kernel sources that are not this version's own, which a run compiles and
                executes: False refuses them, True takes them, a hash (see ``foreign_kernels``) these alone.

        Raises:
            UserError: the directory is none or cannot be read, a file is missing, of another size or of
                other content, its numbers contradict each other, or its kernel sources are not trusted.
        """
        try:
            if not directory.is_dir():
                raise UserError(f"{directory} is not a directory; expected a bundle of tools/export.py")
            bundle = cls(directory, read_manifest(directory))
        except OSError as error:  # a directory closed to us, a name beyond all limits
            raise UserError(
                f"cannot read {directory}: {error.strerror}; expected a bundle of tools/export.py"
            ) from error
        for record in bundle.manifest.files:
            bundle._check_size(record)
        for name in (WEIGHTS, CONFIG, *(graph.file for graph in bundle.manifest.graphs)):
            bundle._record(name)
        for record in bundle.manifest.files:
            if record.name != WEIGHTS:
                check_hash(directory / record.name, record)
        bundle._refuse_strays()
        check_numbers(directory, bundle.manifest)
        foreign = bundle.foreign_kernels()
        if foreign is not None and trust is not True and trust != foreign:
            raise UserError(
                f"{directory / KERNELS} is not this version's own code, and a run would execute "
                f"them: use --trust {foreign} if its maker tells you this hash, or a bundle of this version"
            )
        return bundle

    def foreign_kernels(self) -> str | None:
        """One SHA-256 over names and hashes of the kernel sources; None where they are this version's own."""
        sources = [record for record in self.manifest.files if record.name.startswith(f"{KERNELS}/")]
        theirs = {record.name.removeprefix(f"{KERNELS}/"): record.sha256 for record in sources}
        if not theirs or theirs == {path.name: files.sha256(path) for path in source_files()}:
            return None
        return hashlib.sha256(json.dumps(sorted(theirs.items())).encode()).hexdigest()

    def path(self, name: str) -> Path:
        """Where a file of the bundle is."""
        return self.directory / name

    def read(self, name: str) -> bytes:
        """The content of a small file, checked once more: what is used is what was hashed.

        Raises:
            UserError: it has changed since.
        """
        record = self._record(name)
        data = self.path(name).read_bytes()
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise _differs(self.path(name))
        return data

    @contextlib.contextmanager
    def copied(self, folder: str) -> Iterator[Path]:
        """A temporary copy of a folder's files, made of exactly the content that was hashed."""
        with tempfile.TemporaryDirectory(prefix="ms_eagle-") as directory:
            for record in self.manifest.files:
                path = Path(record.name)
                if path.parent == Path(folder):
                    (Path(directory) / path.name).write_bytes(self.read(record.name))
            yield Path(directory)

    def config(self, overrides: list[str], tree: str | None = None) -> Config:
        """The configuration that the bundle was made from, with ``--set`` overrides and another of its trees.

        Raises:
            UserError: an override of what is compiled in, or one that does not fit; no such tree.
        """
        for override in overrides:
            key = override.partition("=")[0].strip()
            if "=" in override and not key.startswith(_FREE):
                raise UserError(
                    f"--set {key}: a bundle is compiled for the value it was exported with; expected one of "
                    f"{', '.join(f'{each}*' if each.endswith('.') else each for each in _FREE)}, or export "
                    "again"
                )
        config, shape = load_config(self.path(CONFIG), overrides), self.tree(tree)
        if shape is None:
            return config
        return config.model_copy(update={"tree": config.tree.model_copy(update=shape.model_dump())})

    def check_weights(self) -> Callable[[], None]:
        """Begin to hash the weights on another thread; the call that is returned waits for it.

        The call raises:
            UserError: the weights are not those that the bundle was made with.
        """
        pool = ThreadPoolExecutor(1)
        future: Future[None] = pool.submit(check_hash, self.path(WEIGHTS), self._record(WEIGHTS))
        pool.shutdown(wait=False)
        return future.result

    def tree(self, name: str | None) -> TreeRecord | None:
        """The tree that ``--tree`` names, or the configured one; None for the teacher alone.

        Raises:
            UserError: the bundle has no such tree.
        """
        trees = self.manifest.trees
        if name is None:
            return trees[0] if trees else None
        found = next((tree for tree in trees if str(tree) == name), None)
        if found is None:
            known = ", ".join(map(str, trees)) or "none: it is the teacher alone"
            raise UserError(f"--tree {name}: the bundle has {known}")
        return found

    def _record(self, name: str) -> FileRecord:
        for record in self.manifest.files:
            if record.name == name:
                return record
        raise UserError(f"{self.directory / FILE}: lists no {name}; restore the bundle or export again")

    def _check_size(self, record: FileRecord) -> None:
        path = self.path(record.name)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise UserError(
                f"{path} is missing ({error.strerror}): copy the bundle again or export it again"
            ) from error
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is not a plain file: copy the bundle again or export it again")
        if found != record.bytes:
            raise UserError(
                f"{path} has {found} bytes, expected {record.bytes}: it is truncated or of another bundle; "
                "copy the bundle again or export it again"
            )

    def _refuse_strays(self) -> None:
        """Refuse files that the manifest does not know where a file's mere presence has an effect."""
        known = {record.name for record in self.manifest.files}
        for folder in (TOKENIZER, KERNELS):
            for base, _, names in os.walk(self.directory / folder):
                for name in names:
                    inside = (Path(base) / name).relative_to(self.directory).as_posix()
                    if inside not in known:
                        raise UserError(
                            f"{self.directory / inside} does not belong to the bundle; remove it or copy the "
                            "bundle again"
                        )


def describe_file(directory: Path, name: str) -> FileRecord:
    """The record of a file of the bundle in ``directory``."""
    path = directory / name
    return FileRecord(name=name, bytes=path.stat().st_size, sha256=files.sha256(path))


def check_hash(path: Path, record: FileRecord) -> None:
    """Compare a file with its record.

    Raises:
        UserError: it cannot be read or differs.
    """
    try:
        found = files.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; copy the bundle again") from error
    if found != record.sha256:
        raise _differs(path)


def _differs(path: Path) -> UserError:
    return UserError(
        f"{path} does not match its hash in {FILE}: it is damaged or of another bundle; copy the bundle "
        "again or export it again"
    )
