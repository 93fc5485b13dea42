"""From a configuration to a ready engine: device, weights, tokenizer, caches and graphs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mindspore import nn

from ms_eagle.backends import choosing as device
from ms_eagle.backends.native import NativeBackend
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.sources import ModelFiles
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.drafters.base import Blueprint, Drafter, NoDrafter
from ms_eagle.drafters.registry import kind_of
from ms_eagle.engine import compile_cache
from ms_eagle.engine.compile_cache import CompileCache
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.kernels.library import available_cores
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.commit import CloneReorder, FullReorder, KeepOrder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.quantisation import Asked, stored_as
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Weight
from ms_eagle.reference.loading import ReferenceMode
from ms_eagle.system.progress import Progress
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.tokenizer import Tokenizer
from ms_eagle.tree.shape import TreeShape

_VOCABULARIES = ("model.embed_tokens.weight", "lm_head.weight")
_SPARE_TOKENS = 64  # of a tokenizer, such as a padding token, that were added without rows in the model


@dataclass(frozen=True)
class Model:
    """A teacher's files, read and checked against each other; its weights are not loaded yet.

    Attributes:
        files: where they are and came from.
        checkpoint, decoder, tokenizer: what they say.
        weights: ``model.weights``.
    """

    files: ModelFiles
    checkpoint: Checkpoint
    decoder: DecoderConfig
    tokenizer: Tokenizer
    weights: Literal["auto", "float32", "int8", "int4"] = "auto"

    def asked(self, backend: Backend) -> Asked:
        """The format that matrices are computed with.

        Raises:
            UserError: codes on an NPU, where there are no kernels for them yet.
        """
        if backend.name == "fused" and self.weights in ("int8", "int4"):
            raise UserError(
                f"model.weights is {self.weights}, for which there are no kernels on NPUs: set "
                "model.weights=auto."
            )
        if self.weights != "auto":
            return self.weights
        if not backend.codes:
            return "float32"
        return "compact" if self.checkpoint.converted else "stored"


def open_model(config: Config, progress: Progress) -> Model:
    """Find and check the files of ``model.source``.

    Raises:
        UserError: they cannot be had, are damaged, do not belong together or do not fit ``config``.
    """
    source, length = config.model.source, config.model.max_length
    files = sources.resolve(source, cache_dir=config.model.cache_path, progress=progress)
    checkpoint = Checkpoint.open(files.directory)
    decoder = DecoderConfig.from_hf(checkpoint.config)
    checkpoint.check(decoder.tensor_shapes(), decoder.ignorable_tensors())
    if length > decoder.rope.max_positions:
        raise UserError(
            f"model.max_length is {length}, but the model was made for {decoder.rope.max_positions} "
            "positions: set model.max_length to that or less."
        )
    tokenizer = load_tokenizer(files.directory)
    if tokenizer.vocab_size > decoder.vocab_size + _SPARE_TOKENS:  # else prompts that hold one are refused
        raise UserError(
            f"{files.directory}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{decoder.vocab_size}: they do not belong together."
        )
    return Model(files, checkpoint, decoder, tokenizer, config.model.weights)


def start_device(config: Config, progress: Progress, strays: int) -> Backend:
    """Start the device; return what teacher and drafter are made of.

    Args:
        config: its section ``execution``, and ``model.dtype``.
        progress: is told when the best kernels are not to be had.
        strays: most keys that a row sees beyond a prefix of the cache: the depth of the draft tree.

    Raises:
        UserError: a combination of device, kernels and dtype that cannot work.
    """
    execution = config.execution
    name = device.start(execution.device, execution.threads, execution)
    with progress.steps("preparing kernels"):
        return device.backend(
            "eager" if execution.mode == "reference" else execution.kernels,
            name,
            device.dtype(config.model.dtype, name),
            threads=execution.threads,
            strays=strays,
            notice=progress.note,
        )


def load_teacher(
    model: Model,
    backend: Backend,
    progress: Progress,
    *,
    sizes: Sizes,
    taps: tuple[int, ...],
) -> Teacher:
    """The teacher's Cell with its weights; ``taps`` as for ``Teacher``.

    Raises:
        UserError: see ``Model.asked``; values that codes cannot hold.
    """
    asked = model.asked(backend)
    if asked == "compact":
        kinds = ", ".join(model.checkpoint.converted)
        progress.note(
            f"matrices stored as {kinds}, for which there are no kernels, are computed with as int8"
        )
    with progress.steps("loading weights", len(model.decoder.tensor_shapes())) as step:

        def read(name: str) -> Weight:
            step.advance()
            try:
                # The vocabulary suffers most from 4 bits: files in such formats keep it in more, too.
                wide = asked == "int4" and name in _VOCABULARIES
                return stored_as(model.checkpoint.weight(name), "int8" if wide else asked)
            except ValueError as error:
                raise UserError(
                    f"{model.files.directory}: {name}: {error}; set model.weights=float32."
                ) from error

        return Teacher(
            model.decoder,
            read,
            backend,
            batch=sizes.batch,
            slots=sizes.slots,
            positions=sizes.positions,
            taps=taps,
        )


def load_engine(config: Config, progress: Progress | None = None) -> Engine:
    """Load the model that ``config`` names and make its graphs; nothing is compiled yet.

    Raises:
        UserError: whatever is wrong with the sources, the files, or the combination of device, dtype,
            kernels and sizes.
    """
    reference = ReferenceMode(config)
    try:
        return _load(config, progress or Progress(quiet=True), reference)
    except Exception as error:
        reference.fail(error)
        raise


def _load(config: Config, progress: Progress, reference: ReferenceMode) -> Engine:
    begin = time.perf_counter()
    check_tree(config)
    check_drafter(config)
    model = open_model(config, progress)
    drafter = open_drafter(config, model, progress)
    sizes = sizes_of(config, drafter)
    backend = start_device(config, progress, max(1, sizes.depth))
    heads = (model.decoder.num_heads, model.decoder.num_kv_heads, model.decoder.head_dim)
    backend = device.probed(backend, *heads, progress.note)
    teacher = load_teacher(model, backend, progress, sizes=sizes, taps=drafter.needs.taps if drafter else ())
    graphs = make_graphs(
        config, teacher, drafter, backend, sizes, kernels=backend.name, reorder=reorder(config, backend)
    )
    reference.describe(graphs, model.files, drafter.files if drafter else [], progress)
    placed, observer = reference.put_on(graphs, model.tokenizer)
    return Engine(
        placed,
        model.tokenizer,
        directory=model.files.directory,
        load_seconds=time.perf_counter() - begin,
        cache=_compile_cache(config, model, backend, progress),
        observer=observer,
    )


def _compile_cache(config: Config, model: Model, backend: Backend, progress: Progress) -> CompileCache | None:
    """Where ``execution.compile_cache`` keeps compiled graphs."""
    if not config.execution.compile_cache or config.execution.mode != "performance":
        return None
    directories, kind = [model.files.directory], kind_of(config)
    if kind.locate is not None:
        directories.append(kind.locate(config, progress))
    library = backend.operators.library.path if isinstance(backend, NativeBackend) else None
    facts = compile_cache.facts(
        config, directories, kernels=backend.name, library=library, cores=available_cores()
    )
    root = config.model.cache_path
    root = compile_cache.default_directory() if root is None else root / "compiled"
    return CompileCache(root, facts, progress.note, library)


def check_tree(config: Config) -> TreeShape:
    """The section ``tree``, checked against the other sections.

    Raises:
        UserError: they do not go together.
    """
    shape = TreeShape(config.tree.budget, config.tree.depth, config.tree.branch)
    if config.execution.commit == "length" and shape.branch > 1:
        raise UserError(
            f"execution.commit is length, which keeps accepted rows where they are, but a tree of tree.branch"
            f"={shape.branch} does not have them in order: set tree.branch=1."
        )
    window = config.drafter.window
    if window is not None and window < shape.depth:
        raise UserError(
            f"drafter.window is {window}, but the tree is {shape.depth} deep: set drafter.window to that or "
            "more."
        )
    if window is not None and config.execution.mode == "reference":
        raise UserError(
            "drafter.window hides what reference mode expects the drafter to see: set "
            "execution.mode=performance."
        )
    return shape


def check_drafter(config: Config) -> None:
    """Refuse a section ``drafter`` that cannot be, before anything is fetched for it.

    Raises:
        UserError: ``drafter.kind`` is unknown, or lacks its source.
    """
    kind = kind_of(config)
    if kind.locate is not None and config.drafter.source is None:
        kind.locate(config, Progress(quiet=True))


def open_drafter(config: Config, model: Model, progress: Progress) -> Blueprint | None:
    """What the section ``drafter`` asks for; None for the teacher alone.

    Raises:
        UserError: it cannot be had, is damaged, belongs to another teacher, or cannot draft such trees.
    """
    kind = kind_of(config)
    if kind.open is None:
        return None
    return checked(config, kind.open(settled(config, model), model.decoder, progress))


def settled(config: Config, model: Model) -> Config:
    """``config`` with ``drafter.weights`` chosen, where it is left to the teacher's format."""
    if config.drafter.weights != "auto":
        return config
    eager = config.execution.mode == "reference" or config.execution.kernels == "eager"
    codes = model.weights in ("int8", "int4") or (model.weights == "auto" and model.checkpoint.quantised)
    drafter = config.drafter.model_copy(update={"weights": "int8" if codes and not eager else "float32"})
    return config.model_copy(update={"drafter": drafter})


def checked(config: Config, drafter: Blueprint) -> Blueprint:
    """``drafter``, which can draft the section ``tree``.

    Raises:
        UserError: it cannot.
    """
    shape = check_tree(config)
    drafter.check(shape)
    if shape.depth >= config.model.max_length:
        raise UserError(
            f"tree.depth is {shape.depth}, but model.max_length={config.model.max_length} leaves room "
            f"for paths of at most {config.model.max_length - 1} tokens: lower tree.depth."
        )
    return drafter


def sizes_of(config: Config, drafter: Blueprint | None, more: Sequence[TreeShape] = ()) -> Sizes:
    """All static sizes; ``more`` are further trees beside the configured one."""
    tiers = (None,) if drafter is None else (check_tree(config), *more)
    execution = config.execution
    return Sizes(execution.batch_size, execution.prefill_chunk, config.model.max_length, tiers)


def make_graphs(
    config: Config,
    teacher: Teacher,
    drafter: Blueprint | None,
    backend: Backend,
    sizes: Sizes,
    *,
    kernels: str,
    reorder: Callable[[KVCache], nn.Cell],
) -> Graphs:
    """The graphs of a loaded teacher, with a drafter or without one.

    Args:
        config: names the drafter; its confidence and dtype.
        teacher: a ``Teacher``, or another Cell of its interface, with ``sizes.slots``.
        drafter: None decodes with the teacher alone.
        backend: what the drafter is made of.
        sizes: see ``sizes_of``.
        kernels: name of the teacher's attention kernel, for reports.
        reorder: makes the Cell that commits accepted rows of the teacher's cache.
    """
    cell: Drafter = NoDrafter()
    if drafter is not None:
        slots, positions = sizes.draft_slots, sizes.draft_positions
        cell = drafter.build(teacher, backend, sizes.tiers[0], slots=slots, positions=positions)
    backend.settle(teacher, cell)
    return Graphs(
        teacher,
        cell,
        sizes,
        name=config.drafter.kind,
        kernels=kernels,
        dtype=config.model.dtype,
        confidence=config.tree.confidence,
        reorder=reorder,
    )


def reorder(config: Config, backend: Backend) -> Callable[[KVCache], nn.Cell]:
    """How accepted rows are committed: the full reorder has stock operators only."""
    kinds = {
        "fast": backend.reorder,
        "full": FullReorder,
        "length": KeepOrder,
        "clone": lambda cache: CloneReorder(cache, backend.reorder(cache)),
    }
    return kinds[config.execution.commit]
