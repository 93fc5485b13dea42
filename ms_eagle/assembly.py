"""The graphs of a loaded teacher: with the drafter that the configuration asks for, or without one."""

from collections.abc import Callable

from mindspore import nn

from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.head import Drafter
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.drafters.eagle3.window import WindowedRows
from ms_eagle.drafters.scripted import SyntheticEngine, SyntheticProposer
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.models.backend import Backend
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.teacher import Teacher
from ms_eagle.tree.growth import TreeShape


def tree_shape(config: Config, head: Head | None = None) -> TreeShape:
    """The section ``tree``, checked against the other sections and, if there is one, the head.

    Raises:
        UserError: they do not go together.
    """
    shape = TreeShape(config.tree.budget, config.tree.depth, config.tree.branch)
    if config.execution.commit == "length" and shape.branch > 1:
        raise UserError(
            f"execution.commit is length, which keeps accepted rows where they are, but a tree of tree.branch"
            f"={shape.branch} does not have them in order: set tree.branch=1."
        )
    _check_window(config, shape)
    if head is not None:
        shape.check_vocabulary(head.config.draft_vocab_size)
        if shape.depth >= config.model.max_length:
            raise UserError(
                f"tree.depth is {shape.depth}, but model.max_length={config.model.max_length} leaves room "
                f"for paths of at most {config.model.max_length - 1} tokens: lower tree.depth."
            )
    return shape


def teacher_slots(config: Config, head: Head | None) -> int:
    """Cache rows per sequence that the teacher needs (DESIGN.md, "Shapes": S)."""
    rows = 1 if head is None else tree_shape(config, head).rows
    return config.model.max_length + rows + 1


def engine_kind(config: Config) -> type[Engine]:
    """The engine that drives the graphs of ``make_graphs``."""
    return SyntheticEngine if config.drafter.kind == "synthetic" else Engine


def make_graphs(
    config: Config,
    teacher: Teacher,
    head: Head | None,
    backend: Backend,
    kernels: str,
    reorder: Callable[[KVCache], nn.Cell],
) -> TeacherGraphs:
    """The graphs.

    Args:
        config: drafter, tree and sizes.
        teacher: a ``Teacher``, or another Cell of its interface, with ``teacher_slots``.
        head: None decodes with the teacher alone.
        backend: what the drafter is made of.
        kernels: name of the teacher's attention kernel, for reports.
        reorder: makes the Cell that commits accepted rows of the teacher's cache.
    """
    common = {
        "chunk": config.execution.prefill_chunk,
        "capacity": config.model.max_length,
        "kernels": kernels,
    }
    if head is None:
        backend.settle(teacher)
        return TeacherGraphs(teacher, **common)
    shape = tree_shape(config, head)
    drafter = _drafter(head, teacher, backend, config, shape)
    backend.settle(teacher, drafter)
    proposer = Eagle3Proposer(drafter, shape)
    if config.drafter.kind == "synthetic":
        slots = teacher.cache.shape[2]
        proposer = SyntheticProposer(drafter, shape, teacher.vocab_size, slots, config.drafter.acceptance)
    return EagleGraphs(
        teacher,
        proposer,
        shape,
        drafter=config.drafter.kind,
        confidence=config.tree.confidence,
        reorder=reorder,
        **common,
    )


def _check_window(config: Config, shape: TreeShape) -> None:
    """Refuse a window that cannot be.

    Raises:
        UserError: it is shorter than the tree is deep, or the mode is reference.
    """
    window = config.drafter.window
    if window is None:
        return
    if window < shape.depth:
        raise UserError(
            f"drafter.window is {window}, but the tree is {shape.depth} deep: set drafter.window to that or "
            "more."
        )
    if config.execution.mode == "reference":
        raise UserError(
            "drafter.window hides what reference mode expects the drafter to see: set "
            "execution.mode=performance."
        )


def _drafter(
    head: Head,
    teacher: Teacher,
    backend: Backend,
    config: Config,
    shape: TreeShape,
) -> Drafter:
    """The drafter over its own static cache (DESIGN.md, "Shapes": S_d)."""
    slots = config.model.max_length + (shape.depth - 1) * shape.branch + 1
    drafter = Drafter(
        head,
        teacher.vocabulary,
        teacher.head,
        backend,
        batch=config.execution.batch_size,
        slots=slots,
        positions=slots + shape.depth,
    )
    if config.drafter.window is not None:
        drafter.rows = WindowedRows(drafter.rows, config.drafter.window)
    return drafter
