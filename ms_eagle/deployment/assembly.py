"""The Cells that an export compiles: the teacher alone, and cycles with the drafter for every tree shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, nn

from ms_eagle import loading
from ms_eagle.backends import choosing as device
from ms_eagle.backends.stock import StockBackend
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.deployment.graphs import SEEN
from ms_eagle.deployment.random_model import random_model
from ms_eagle.drafters.registry import kind_of
from ms_eagle.errors import UserError
from ms_eagle.loading import Model
from ms_eagle.models.backend import Backend
from ms_eagle.system import settings as context
from ms_eagle.system.progress import Progress
from ms_eagle.tree.shape import TreeShape


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
        drafting: with the drafter, a tier for every tree; None without one. It shares the teacher's caches.
        backend: what they are made of.
    """

    model: Model
    alone: Graphs
    drafting: Graphs | None
    backend: Backend

    @property
    def graphs(self) -> Graphs:
        """Those with most in them."""
        return self.drafting or self.alone

    def cells(self) -> list[nn.Cell]:
        """Every compiled Cell."""
        return [
            cell
            for graphs in (self.alone, self.drafting)
            if graphs is not None
            for cell in (
                graphs.prefill(),
                *(graphs.cycle(tier, s) for tier in graphs.facts.sizes.tiers for s in (False, True)),
            )
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
    loading.check_tree(config)
    if randomly is None:
        model = loading.open_model(config, progress)
        drafter = loading.open_drafter(config, model, progress)
    else:
        model = random_model(config, randomly.layers, progress)
        kind = kind_of(config)
        drafter = None
        if kind.random is not None:
            drafter = kind.random(loading.settled(config, model), model.decoder)
    if drafter is None and trees:
        raise UserError("--tree: drafter.kind is none, so no tree is drafted; expected a configured head")
    if drafter is not None:
        for each in (config, *(_with_tree(config, tree) for tree in trees)):
            loading.checked(each, drafter)
    sizes = loading.sizes_of(config, drafter, trees)
    backend = start_backend(config, target, max(1, sizes.depth), progress)
    taps = () if drafter is None else drafter.needs.taps
    teacher = loading.load_teacher(model, backend, progress, sizes=sizes, taps=taps)
    commit = loading.reorder(config, backend)
    graphs = loading.make_graphs(
        config, teacher, drafter, backend, sizes, kernels=backend.name, reorder=commit
    )
    return Parts(model, graphs.alone(), None if drafter is None else graphs, backend)


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
    kind = kind_of(config)
    if kind.undeployable is not None:
        raise UserError(f"drafter.kind is {kind.name}, {kind.undeployable}; expected eagle3 or none")
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
    with progress.steps("preparing kernels"):
        return device.backend(
            config.execution.kernels,
            "CPU",
            device.dtype(config.model.dtype, "CPU"),
            threads=config.execution.threads,
            strays=strays,
            notice=progress.note,
        )


def parameter_names(parts: Parts) -> dict[int, str]:
    """What the bundle calls each Parameter, by its ``id``: one name for one piece of memory."""
    names: dict[int, str] = {id(parts.graphs.seen): SEEN}
    for part, cell in (("teacher", parts.graphs.teacher), ("drafter", parts.graphs.drafter)):
        for name, parameter in cell.parameters_and_names():
            names.setdefault(id(parameter), f"{part}.{name}")
    for cell in parts.cells():
        for name, parameter in cell.parameters_and_names():
            names.setdefault(id(parameter), f"cycle.{name}")
    return names


def state_parameters(parts: Parts) -> list[Parameter]:
    """What the graphs write to: caches and the tokens seen."""
    caches = (parts.graphs.teacher.cache, *parts.graphs.drafter.caches())
    return [*(buffer for cache in caches for buffer in (*cache.keys, *cache.values)), parts.graphs.seen]


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
        ms.uint8: "uint8",
        ms.bool_: "bool",
    }
    return names[dtype]
