"""What a bundle says about itself: ``manifest.json``, read strictly."""

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ms_eagle.cycle.sizes import Sizes
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import PARAMS
from ms_eagle.system import json_file
from ms_eagle.tree.shape import TreeShape

FILE = "manifest.json"
_SHOWN = 200  # characters of what a manifest says
SCHEMA = 2
"""Version of the bundle format; a reader takes exactly its own."""

Count = Annotated[int, Field(ge=1, lt=2**31)]


class Record(BaseModel):
    """Part of a manifest: only the declared keys, no conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _inside(name: str) -> str:
    """A relative path that stays below the bundle, with forward slashes."""
    path = PurePosixPath(name)
    if "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise ValueError("a path inside the bundle is needed")
    return name


Name = Annotated[str, Field(min_length=1), AfterValidator(_inside)]


class FileRecord(Record):
    """A file of the bundle: relative path, size in bytes, hexadecimal SHA-256."""

    name: Name
    bytes: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class TensorRecord(Record):
    """Name, number format (``float32``, ``int32``, ...) and shape of an input or of a state."""

    name: str
    dtype: Literal["float32", "float16", "bfloat16", "int32", "uint8", "bool"]
    shape: list[Count]


class TreeRecord(Record):
    """The shape of a draft tree: M, D and k."""

    budget: Count
    depth: Count
    branch: Count

    def __str__(self) -> str:
        return f"{self.budget}x{self.depth}x{self.branch}"


class GraphRecord(Record):
    """One MINDIR file.

    Attributes:
        file: its path in the bundle.
        drafter: whether it drafts; else it is the teacher alone.
        tree: of a cycle that drafts; None otherwise.
        sampled: of a cycle: with every sampling option, or greedy only; None for a prefill.
        inputs: of a call, in order.
    """

    file: Name
    drafter: bool
    tree: TreeRecord | None
    sampled: bool | None
    inputs: list[TensorRecord]


class Slots(Record):
    """Cache rows of a sequence, trash slot included: S and S_d of ``cycle.sizes``."""

    teacher: Count
    drafter: Count | None


class Manifest(Record):
    """The whole manifest.

    Attributes:
        schema_version: ``SCHEMA`` of the writer.
        target: the device that the graphs are for.
        drafter: its kind.
        model, head: where they came from, as the configuration named them.
        random: why the weights are no real ones; None for real ones.
        versions: of MindSpore and this package, when it was made.
        kernels, dtype, batch, chunk, capacity, positions, vocab_size: as in ``cycle.sizes.Facts``.
        layers: of the teacher.
        trees: the shapes that there are cycles for, the configured one first.
        states: what the graphs write to, zeros at the start; ``seen`` is for the repetition penalty.
        files: every file but this one.
    """

    schema_version: int
    target: Literal["cpu", "ascend"]
    model: str
    drafter: str
    head: str | None
    random: str | None
    versions: dict[str, str]
    kernels: str
    dtype: Literal["float32", "float16", "bfloat16"]
    batch: Count
    chunk: Count
    capacity: Count
    positions: Count
    vocab_size: Count
    layers: Count
    slots: Slots
    trees: list[TreeRecord]
    graphs: list[GraphRecord]
    states: list[TensorRecord]
    files: list[FileRecord]

    def graph(self, *, tree: TreeRecord | None, sampled: bool | None) -> GraphRecord:
        """The graph of a role: a prefill where ``sampled`` is None, the teacher's alone without a tree.

        Raises:
            UserError: the bundle has none.
        """
        for each in self.graphs:
            same_tree = sampled is None or each.tree == tree
            if each.drafter == (tree is not None) and each.sampled == sampled and same_tree:
                return each
        what = "prefill" if sampled is None else f"{'sampled' if sampled else 'greedy'} cycle"
        raise UserError(
            f"the bundle has no {what} {'of the teacher alone' if tree is None else f'for the tree {tree}'}: "
            "export it again"
        )


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle.

    Raises:
        UserError: there is none, it is of another schema version, or it is malformed.
    """
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"{directory} holds no {FILE}: expected a bundle, as tools/export.py writes one")
    content = json_file.read_object(path)
    version = content.get("schema_version")
    if version != SCHEMA or isinstance(version, bool):
        raise UserError(
            f"{path}: found schema_version {version!r}, expected {SCHEMA}; export the bundle again with this "
            "version, or run it with the one that made it"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(f"{path}: {key}: {first['msg']}; restore the file or export again") from error


def check_numbers(directory: Path, manifest: Manifest) -> None:
    """Refuse a manifest whose numbers cannot all be true: graphs would be called with wrong shapes.

    Raises:
        UserError: naming a contradiction.
    """
    m = manifest
    tiers = [TreeShape(tree.budget, tree.depth, tree.branch) for tree in m.trees]
    sizes = Sizes(m.batch, m.chunk, m.capacity, (None, *tiers))
    if (m.positions, m.slots.teacher) != (sizes.positions, sizes.slots):
        raise _contradiction(directory, "positions and slots", [m.positions, m.slots.teacher], sizes.slots)
    for graph in m.graphs:
        batch = [m.batch]
        expected = {"window": [m.batch, m.chunk + 1], "start": batch, "count": batch}
        if graph.sampled is not None:
            expected = {"root": batch, "n": batch, "active": batch, "params": [m.batch, len(PARAMS)]}
            expected["uniforms"] = [m.batch, m.positions]
        shapes = {each.name: each.shape for each in graph.inputs}
        if (state := shapes.pop("state", None)) is None or len(state) != 2 or state[0] != m.batch:
            raise _contradiction(directory, f"state of {graph.file}", state, [m.batch, "its width"])
        if shapes != expected:
            raise _contradiction(directory, f"inputs of {graph.file}", shapes, expected)
    states = {each.name: each.shape for each in m.states}
    caches = {f"teacher.cache.{kind}.{i}" for kind in ("key", "value") for i in range(m.layers)}
    teachers = {name for name in states if name.startswith("teacher.")}
    if teachers != caches or states.get("seen") != [m.batch, m.vocab_size]:
        raise _contradiction(directory, "states", sorted(states), f"caches of {m.layers} layers, and seen")
    for name, shape in states.items():
        slots = m.slots.teacher if name in caches else m.slots.drafter
        if name != "seen" and (slots is None or len(shape) != 2 or shape[0] % (m.batch * slots)):
            raise _contradiction(directory, name, shape, f"rows for {m.batch} x {slots} slots")


def _contradiction(directory: Path, what: str, value: object, expected: object) -> UserError:
    return UserError(
        f"{directory / FILE}: {what}: {str(value)[:_SHOWN]}, expected {str(expected)[:_SHOWN]} by its other "
        "numbers; restore the file or export again"
    )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a bundle."""
    json_file.write_object(directory / FILE, manifest.model_dump(mode="json"))
