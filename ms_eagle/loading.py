"""From a configuration to a ready engine: device, weights, tokenizer, caches and graphs."""

import time
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np

from ms_eagle import device, sources
from ms_eagle.architecture import DecoderConfig
from ms_eagle.checkpoint import Checkpoint
from ms_eagle.commit import FastReorder, FullReorder
from ms_eagle.config import Config
from ms_eagle.drafter import Drafter
from ms_eagle.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.head_checkpoint import Head, load_head
from ms_eagle.progress import Progress
from ms_eagle.proposer import Eagle3Proposer
from ms_eagle.synthetic import SyntheticEngine, SyntheticProposer, random_head
from ms_eagle.teacher import Teacher
from ms_eagle.tokenizer import load_tokenizer
from ms_eagle.tree import TreeShape

_REORDERS = {"fast": FastReorder, "full": FullReorder}


def load_engine(config: Config, progress: Progress | None = None) -> Engine:
    """Load the model that ``config`` names and make its graphs; nothing is compiled yet.

    Raises:
        UserError: whatever is wrong with the sources, the files, or the combination of device, dtype,
            kernels and sizes.
    """
    begin = time.perf_counter()
    progress = progress or Progress(quiet=True)
    model, execution = config.model, config.execution
    shape = TreeShape(config.tree.budget, config.tree.depth, config.tree.branch)
    files = sources.resolve(model.source, cache_dir=_cache_dir(config), progress=progress)
    checkpoint = Checkpoint.open(files.directory)
    decoder = DecoderConfig.from_hf(checkpoint.config)
    checkpoint.check(decoder.tensor_shapes(), decoder.ignorable_tensors())
    if model.max_length > decoder.rope.max_positions:
        raise UserError(
            f"model.max_length is {model.max_length}, but the model was made for "
            f"{decoder.rope.max_positions} positions: set model.max_length to that or less."
        )
    tokenizer = load_tokenizer(files.directory)
    if tokenizer.vocab_size > decoder.vocab_size:
        raise UserError(
            f"{files.directory}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{decoder.vocab_size}: they do not belong together."
        )
    head = _head(config, decoder, progress)
    name = device.start(execution.device, execution.threads)
    number = device.dtype(model.dtype, name)
    kernels = device.kernels(execution.kernels, name, number)
    rows = 1 if head is None else shape.rows
    slots = model.max_length + rows + 1
    with progress.steps("loading weights", len(decoder.tensor_shapes())) as step:
        teacher = Teacher(
            decoder,
            _counted(checkpoint.read, step.advance),
            device.attention(kernels, decoder),
            number,
            batch=execution.batch_size,
            slots=slots,
            positions=slots,
            taps=() if head is None else head.config.taps,
        )
    common = {"chunk": execution.prefill_chunk, "capacity": model.max_length, "kernels": kernels}
    kind: type[Engine] = Engine
    if head is None:
        graphs = TeacherGraphs(teacher, **common)
    else:
        drafter = _drafter(head, teacher, kernels, number, config, shape)
        proposer = Eagle3Proposer(drafter, shape)
        if config.drafter.kind == "synthetic":
            kind = SyntheticEngine
            proposer = SyntheticProposer(drafter, shape, teacher.vocab_size, slots, config.drafter.acceptance)
        graphs = EagleGraphs(
            teacher,
            proposer,
            shape,
            drafter=config.drafter.kind,
            confidence=config.tree.confidence,
            reorder=_REORDERS[execution.commit],
            **common,
        )
    return kind(
        graphs,
        tokenizer,
        directory=files.directory,
        dtype=model.dtype,
        load_seconds=time.perf_counter() - begin,
    )


def _cache_dir(config: Config) -> Path | None:
    return Path(config.model.cache_dir).expanduser() if config.model.cache_dir else None


def _head(config: Config, decoder: DecoderConfig, progress: Progress) -> Head | None:
    """The head that the section ``drafter`` asks for."""
    drafter = config.drafter
    if drafter.kind == "none":
        return None
    if drafter.kind == "synthetic":
        return random_head(decoder, drafter.taps)
    if drafter.source is None:
        raise UserError(
            "drafter.kind is eagle3, but drafter.source is missing: set it to the directory of a head "
            "or to hf:org/name."
        )
    files = sources.resolve(drafter.source, cache_dir=_cache_dir(config), progress=progress)
    return load_head(files.directory, teacher=decoder, taps=drafter.taps, rope_theta=drafter.rope_theta)


def _drafter(
    head: Head, teacher: Teacher, kernels: str, number: ms.Type, config: Config, shape: TreeShape
) -> Drafter:
    """The drafter over its own static cache (DESIGN.md, "Shapes": S_d)."""
    slots = config.model.max_length + (shape.depth - 1) * shape.branch + 1
    return Drafter(
        head,
        teacher.embedding,
        teacher.unembedding,
        device.attention(kernels, head.config),
        number,
        batch=config.execution.batch_size,
        slots=slots,
        positions=slots + shape.depth,
    )


def _counted(read: Callable[[str], np.ndarray], advance: Callable[[], None]) -> Callable[[str], np.ndarray]:
    """``read``, telling ``advance`` of every tensor."""

    def reading(name: str) -> np.ndarray:
        advance()
        return read(name)

    return reading
