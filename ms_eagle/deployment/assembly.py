"""The Cells that an export compiles: the teacher alone, and cycles with the drafter for every tree shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, nn

from ms_eagle.assembly import make_graphs, teacher_slots, tree_shape
from ms_eagle.backends import choosing as device
from ms_eagle.backends.stock import StockBackend
from ms_eagle.checkpoints.random_weights import random_draft_head, random_model
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.cycle.verifier import SampledChoice
from ms_eagle.deployment.graphs import SEEN
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.errors import UserError
from ms_eagle.loading import Model, find_head, load_teacher, open_model, reorder
from ms_eagle.models.backend import Backend
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.system import settings as context
from ms_eagle.system.progress import Progress
from ms_eagle.tree.growth import TreeShape


@dataclass(frozen=True)
class Randomly:
    """Random weights in the shape of a model, with so many layers; None keeps the model's number."""

    layers: int | None = None


@dataclass(frozen=True)
class Parts:
    """Loaded Cells with their weights.

    Attributes:
        model: the teacher's files.
        alone: the teacher without a drafter.
        drafting: graphs by tree shape, the configured one first; all share teacher and drafter.
        drafter_slots: S_d, or None.
        backend: what they are made of.
    """

    model: Model
    alone: TeacherGraphs
    drafting: dict[TreeShape, EagleGraphs]
    drafter_slots: int | None
    backend: Backend

    def cells(self) -> list[nn.Cell]:
        """Every compiled Cell."""
        return [
            cell
            for graphs in (self.alone, *self.drafting.values())
            for cell in (graphs.prefill(), graphs.cycle(True), graphs.cycle(False))
        ]


def load_parts(
    config: Config,
    target: str,
    trees: Sequence[TreeShape],
    progress: Progress,
    randomly: Randomly | None = None,
) -> Parts:
    """Load the model and the head of ``config`` into the Cells of ``target``.

    Args:
        config: checked, see ``check``.
        target: ``cpu`` or ``ascend``.
        trees: further tree shapes.
        progress: shows what is loaded.
        randomly: with random weights.

    Raises:
        UserError: see ``loading.load_engine``.
    """
    configs = [config, *(_with_tree(config, tree) for tree in trees)]
    for each in configs:
        tree_shape(each)
    if randomly is None:
        model = open_model(config, progress)
        head = find_head(config, model.decoder, progress)
    else:
        model = random_model(config, randomly.layers, progress)
        head = random_draft_head(config, model.decoder)
    if head is None and trees:
        raise UserError("--tree: drafter.kind is none, so no tree is drafted; expected a configured head")
    shapes = [] if head is None else [tree_shape(each, head) for each in configs]
    backend = start_backend(config, target, max((shape.depth for shape in shapes), default=1), progress)
    teacher = load_teacher(
        model,
        backend,
        progress,
        batch=config.execution.batch_size,
        slots=max(teacher_slots(each, head) for each in configs),
        taps=() if head is None else head.config.taps,
    )
    alone = TeacherGraphs(
        teacher, chunk=config.execution.prefill_chunk, capacity=config.model.max_length, kernels=backend.name
    )
    commit = reorder(config, backend)
    drafting = _drafting(configs, shapes, teacher, head, backend, commit)
    slots = next((graphs.proposer.drafter.cache.shape[2] for graphs in drafting.values()), None)
    return Parts(model, alone, drafting, slots, backend)


def check(config: Config, target: str) -> None:
    """Refuse what cannot be exported, before anything is loaded.

    Raises:
        UserError: a mode, a trace, a drafter, kernels or a number format that a bundle cannot have.
    """
    if config.execution.mode != "performance":
        raise UserError(
            "execution.mode is reference; a bundle has performance mode's graphs only: leave it out"
        )
    if config.execution.trace is not None:
        raise UserError("execution.trace is set; a bundle writes no trace: leave it out")
    if config.drafter.kind == "synthetic":
        raise UserError(
            "drafter.kind is synthetic, a measurement that needs the model code; expected eagle3 or none"
        )
    if config.execution.commit == "clone":
        raise UserError(
            "execution.commit is clone, a baseline for measurements; expected fast, full or length"
        )
    if target == "cpu":
        return
    if config.model.dtype == "float32":
        raise UserError(
            "model.dtype is float32, but FlashAttentionScore takes float16 or bfloat16: for --target ascend "
            "set model.dtype=bfloat16 (or float16)"
        )
    if config.execution.kernels not in ("auto", "fused"):
        raise UserError(
            f"execution.kernels is {config.execution.kernels}; a bundle for Ascend has fused attention: "
            "leave it at auto"
        )


def start_backend(config: Config, target: str, strays: int, progress: Progress) -> Backend:
    """Start MindSpore on this host and make the backend of the target; an Ascend graph needs no NPU here."""
    context.start("CPU", config.execution.threads)
    if target == "ascend":
        return StockBackend("fused", device.DTYPES[config.model.dtype])
    return device.backend(
        config.execution.kernels,
        "CPU",
        device.dtype(config.model.dtype, "CPU"),
        threads=config.execution.threads,
        strays=strays,
        notice=progress.note,
    )


def parameter_names(parts: Parts) -> dict[int, str]:
    """What the bundle calls each Parameter, by its ``id``: one name for one piece of memory.

    The choices of all cycles remember the same tokens, so their Parameters become one.
    """
    names: dict[int, str] = {}
    cells = {"teacher": parts.alone.teacher}
    for graphs in parts.drafting.values():  # they share it
        cells["drafter"] = graphs.proposer.drafter
    for part, cell in cells.items():
        for name, parameter in cell.parameters_and_names():
            names.setdefault(id(parameter), f"{part}.{name}")
    for cell in parts.cells():
        for _, inner in cell.cells_and_names():
            if isinstance(inner, SampledChoice):
                names[id(inner.seen)] = SEEN
        for name, parameter in cell.parameters_and_names():
            names.setdefault(id(parameter), f"cycle.{name}")
    return names


def state_parameters(parts: Parts) -> list[Parameter]:
    """What the graphs write to: caches and, once, the tokens seen."""
    found: dict[int, Parameter] = {}
    for cell in parts.cells():
        for _, inner in cell.cells_and_names():
            if isinstance(inner, KVCache):
                found |= {id(each): each for each in (*inner.keys, *inner.values)}
    found[0] = parts.alone._sampled.seen
    return list(found.values())


def _drafting(
    configs: Sequence[Config],
    shapes: Sequence[TreeShape],
    teacher: nn.Cell,
    head: Head | None,
    backend: Backend,
    commit: Callable[[KVCache], nn.Cell],
) -> dict[TreeShape, EagleGraphs]:
    """Graphs for every shape around one drafter, which has the slots of the shape that needs most."""
    if head is None:
        return {}
    widest = max(range(len(shapes)), key=lambda i: (shapes[i].depth - 1) * shapes[i].branch)
    first = make_graphs(configs[widest], teacher, head, backend, backend.name, commit)
    drafter = first.proposer.drafter
    return {
        shape: first
        if shape == shapes[widest]
        else EagleGraphs(
            teacher,
            Eagle3Proposer(drafter, shape),
            shape,
            drafter=first.drafter,
            chunk=first.chunk,
            capacity=first.capacity,
            kernels=backend.name,
            confidence=each.tree.confidence,
            reorder=commit,
        )
        for shape, each in zip(shapes, configs, strict=True)
    }


def _with_tree(config: Config, shape: TreeShape) -> Config:
    tree = config.tree.model_copy(
        update={"budget": shape.budget, "depth": shape.depth, "branch": shape.branch}
    )
    return config.model_copy(update={"tree": tree})


def number_type(dtype: ms.Type) -> str:
    """A number format as manifests name it."""
    names = {
        ms.float32: "float32",
        ms.float16: "float16",
        ms.bfloat16: "bfloat16",
        ms.int32: "int32",
        ms.bool_: "bool",
    }
    return names[dtype]
