"""From a configuration to a ready engine: device, weights, tokenizer, caches and graphs."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ms_eagle import device, sources
from ms_eagle.architecture import DecoderConfig
from ms_eagle.checkpoint import Checkpoint
from ms_eagle.config import Config
from ms_eagle.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.graphs import TeacherGraphs
from ms_eagle.progress import Progress
from ms_eagle.teacher import Teacher
from ms_eagle.tokenizer import load_tokenizer


def load_engine(config: Config, progress: Progress | None = None) -> Engine:
    """Load the model that ``config`` names and make its graphs; nothing is compiled yet.

    Raises:
        UserError: whatever is wrong with the source, the files, or the combination of device, dtype,
            kernels and sizes.
    """
    begin = time.perf_counter()
    progress = progress or Progress(quiet=True)
    model, execution = config.model, config.execution
    cache_dir = Path(model.cache_dir).expanduser() if model.cache_dir else None
    files = sources.resolve(model.source, cache_dir=cache_dir, progress=progress)
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
    name = device.start(execution.device, execution.threads)
    number = device.dtype(model.dtype, name)
    kernels = device.kernels(execution.kernels, name, number)
    slots = model.max_length + 2  # the root's row and the trash slot
    with progress.steps("loading weights", len(decoder.tensor_shapes())) as step:
        teacher = Teacher(
            decoder,
            _counted(checkpoint.read, step.advance),
            device.attention(kernels, decoder),
            number,
            batch=execution.batch_size,
            slots=slots,
            positions=slots,
        )
    graphs = TeacherGraphs(teacher, chunk=execution.prefill_chunk, capacity=model.max_length, kernels=kernels)
    return Engine(
        graphs,
        tokenizer,
        directory=files.directory,
        dtype=model.dtype,
        load_seconds=time.perf_counter() - begin,
    )


def _counted(read: Callable[[str], np.ndarray], advance: Callable[[], None]) -> Callable[[str], np.ndarray]:
    """``read``, telling ``advance`` of every tensor."""

    def reading(name: str) -> np.ndarray:
        advance()
        return read(name)

    return reading
