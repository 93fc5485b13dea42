"""From a configuration to a ready engine: device, weights, tokenizer, caches and graphs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
from mindspore import nn

from ms_eagle.assembly import engine_kind, make_graphs, teacher_slots, tree_shape
from ms_eagle.backends import choosing as device
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.sources import ModelFiles
from ms_eagle.config.sections import Config
from ms_eagle.drafters.eagle3.checkpoint import Head, load_head
from ms_eagle.drafters.eagle3.vocabulary import narrowed
from ms_eagle.drafters.scripted import random_head
from ms_eagle.engine import compile_cache
from ms_eagle.engine.compile_cache import CompileCache
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.kernels.library import available_cores
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.commit import CloneReorder, FullReorder, KeepOrder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Read, Weight
from ms_eagle.reference.loading import ReferenceMode
from ms_eagle.system.progress import Progress
from ms_eagle.system.settings import Settings
from ms_eagle.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Model:
    """A teacher's files, read and checked against each other; its weights are not loaded yet.

    Attributes:
        files: where they are and came from.
        checkpoint, decoder, tokenizer: what they say.
    """

    files: ModelFiles
    checkpoint: Checkpoint
    decoder: DecoderConfig
    tokenizer: Tokenizer


def open_model(config: Config, progress: Progress) -> Model:
    """Find and check the files of ``model.source``.

    Raises:
        UserError: they cannot be had, are damaged, do not belong together or do not fit ``config``.
    """
    source, length = config.model.source, config.model.max_length
    files = sources.resolve(source, cache_dir=_cache_dir(config), progress=progress)
    checkpoint = Checkpoint.open(files.directory)
    decoder = DecoderConfig.from_hf(checkpoint.config)
    checkpoint.check(decoder.tensor_shapes(), decoder.ignorable_tensors())
    if length > decoder.rope.max_positions:
        raise UserError(
            f"model.max_length is {length}, but the model was made for {decoder.rope.max_positions} "
            "positions: set model.max_length to that or less."
        )
    tokenizer = load_tokenizer(files.directory)
    if tokenizer.vocab_size > decoder.vocab_size:
        raise UserError(
            f"{files.directory}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{decoder.vocab_size}: they do not belong together."
        )
    return Model(files, checkpoint, decoder, tokenizer)


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
    name = device.start(execution.device, execution.threads, Settings.of(execution))
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
    batch: int,
    slots: int,
    taps: tuple[int, ...],
) -> Teacher:
    """The teacher's Cell with its weights; arguments as for ``Teacher``."""
    with progress.steps("loading weights", len(model.decoder.tensor_shapes())) as step:
        return Teacher(
            model.decoder,
            _counted(model.checkpoint.weight, step.advance),
            backend,
            batch=batch,
            slots=slots,
            positions=slots,
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
    tree_shape(config)
    check_drafter(config)
    model = open_model(config, progress)
    head = find_head(config, model.decoder, progress)
    shape = tree_shape(config, head)
    backend = start_device(config, progress, 1 if head is None else shape.depth)
    sizes = (model.decoder.num_heads, model.decoder.num_kv_heads, model.decoder.head_dim)
    backend = device.probed(backend, *sizes, progress.note)
    teacher = load_teacher(
        model,
        backend,
        progress,
        batch=config.execution.batch_size,
        slots=teacher_slots(config, head),
        taps=() if head is None else head.config.taps,
    )
    graphs = make_graphs(config, teacher, head, backend, backend.name, reorder(config, backend))
    reference.describe(graphs, model.files, head, progress)
    return engine_kind(config)(
        reference.graphs(graphs, model.tokenizer),
        model.tokenizer,
        directory=model.files.directory,
        dtype=config.model.dtype,
        load_seconds=time.perf_counter() - begin,
        cache=_compile_cache(config, model, progress),
    )


def _compile_cache(config: Config, model: Model, progress: Progress) -> CompileCache | None:
    """Where ``execution.compile_cache`` keeps compiled graphs."""
    if not config.execution.compile_cache or config.execution.mode != "performance":
        return None
    directories = [model.files.directory]
    if config.drafter.kind == "eagle3":
        directories.append(head_directory(config, progress))
    root = _cache_dir(config)
    facts = {"device": ms.get_context("device_target"), "cores": available_cores()}
    key = compile_cache.key(config, directories, facts)
    return CompileCache(compile_cache.default_directory() if root is None else root / "compiled", key)


def check_drafter(config: Config) -> None:
    """Refuse a section ``drafter`` that lacks the head, before anything is fetched for it.

    Raises:
        UserError: ``drafter.source`` is missing.
    """
    if config.drafter.kind == "eagle3" and config.drafter.source is None:
        raise UserError(
            "drafter.kind is eagle3, but drafter.source is missing: set it to the directory of a head "
            "or to hf:org/name."
        )


def find_head(config: Config, decoder: DecoderConfig, progress: Progress) -> Head | None:
    """The head that the section ``drafter`` asks for; None for the teacher alone.

    Raises:
        UserError: it cannot be had, is damaged, or belongs to another teacher; see ``load_head``.
    """
    drafter = config.drafter
    if drafter.kind == "none":
        return None
    if drafter.kind == "synthetic":
        return random_head(decoder, drafter.taps)
    directory = head_directory(config, progress)
    head = load_head(directory, teacher=decoder, taps=drafter.taps, rope_theta=drafter.rope_theta)
    return head if drafter.vocabulary is None else narrowed(head, drafter.vocabulary)


def head_directory(config: Config, progress: Progress) -> Path:
    """Where the files of ``drafter.source`` are.

    Raises:
        UserError: they cannot be had.
    """
    check_drafter(config)
    try:
        source = config.drafter.source
        return sources.resolve_head(source, cache_dir=_cache_dir(config), progress=progress).directory
    except UserError as error:
        raise UserError(f"drafter.source: {error}") from error


def _cache_dir(config: Config) -> Path | None:
    return Path(config.model.cache_dir).expanduser() if config.model.cache_dir else None


def reorder(config: Config, backend: Backend) -> Callable[[KVCache], nn.Cell]:
    """How accepted rows are committed: the full reorder has stock operators only."""
    kinds = {
        "fast": backend.reorder,
        "full": FullReorder,
        "length": KeepOrder,
        "clone": lambda cache: CloneReorder(cache, backend.reorder(cache)),
    }
    return kinds[config.execution.commit]


def _counted(read: Read, advance: Callable[[], None]) -> Read:
    """``read``, telling ``advance`` of every tensor."""

    def reading(name: str) -> Weight:
        advance()
        return read(name)

    return reading
