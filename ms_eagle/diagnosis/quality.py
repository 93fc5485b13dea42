"""What a format of weights costs in quality: a model against itself in another format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ms_eagle import loading
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.diagnosis.check import PROMPTS, encode_question
from ms_eagle.drafters.base import NoDrafter
from ms_eagle.drafters.registry import NONE
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.models.reading import Logits, Reader
from ms_eagle.system.progress import Progress

Format = Literal["auto", "float32", "int8", "int4"]
PASSAGE = Path(__file__).parent / "passage.txt"
_LONGEST, _ANSWER = 1024, 64  # tokens of the text, and of each answer


@dataclass(frozen=True)
class Quality:
    """How a format does.

    Attributes:
        format: its name.
        weight_bytes: of all matrices and vectors in memory.
        perplexity: of the text, the exponential of its mean surprise in nats a token.
        divergence: mean Kullback-Leibler divergence of its next-token distribution from the reference's, in
            nats.
        top: share of positions at which both find the same token most probable.
        answers: tokens of each greedy answer before it leaves the reference's, of ``answer_tokens``.
    """

    format: str
    weight_bytes: int
    perplexity: float
    divergence: float
    top: float
    answers: tuple[int, ...]
    answer_tokens: int = _ANSWER


@dataclass(frozen=True)
class _Run:
    log_probs: np.ndarray
    surprise: np.ndarray
    answers: list[tuple[int, ...]]
    weight_bytes: int


def compare(
    config: Config, formats: Sequence[Format], against: Format, text: str, progress: Progress
) -> list[Quality]:
    """Measure formats of one model; the reference comes first.

    Args:
        config: names the model; its drafter and ``model.weights`` do not matter.
        formats: to compare, each once.
        against: the reference.
        text: up to 1024 tokens of it are read.
        progress: shows what is being measured.

    Raises:
        UserError: the model cannot be had or computed with in a format; the text is too short.
    """
    reference = _run(config, against, text, progress)
    found = [_compared(against, reference, reference)]
    for each in formats:
        if each != against:
            found.append(_compared(each, _run(config, each, text, progress), reference))
    return found


def _compared(name: str, run: _Run, reference: _Run) -> Quality:
    chances = np.exp(reference.log_probs)
    divergence = (chances * (reference.log_probs - run.log_probs)).sum(1, dtype=np.float64)
    pairs = zip(run.answers, reference.answers, strict=True)
    return Quality(
        name,
        run.weight_bytes,
        float(np.exp(run.surprise.mean())),
        float(max(0.0, divergence.mean())),
        float((run.log_probs.argmax(1) == reference.log_probs.argmax(1)).mean()),
        tuple(_common(*pair) for pair in pairs),
    )


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Tokens before the first that differs; answers that end alike agree to the end."""
    if tuple(ours) == tuple(theirs):
        return _ANSWER
    different = [mine != other for mine, other in zip(ours, theirs, strict=False)]
    return different.index(True) if True in different else len(different)


def _run(config: Config, weights: Format, text: str, progress: Progress) -> _Run:
    update = {"model": config.model.model_copy(update={"weights": weights})}
    config = config.model_copy(update=update)
    model = loading.open_model(config, progress)
    tokens = model.tokenizer.encode(text)[: min(_LONGEST, config.model.max_length)]
    if len(tokens) < 3:
        raise UserError(f"the text has {len(tokens)} tokens; expected at least 3, better some hundred.")
    prompts = [encode_question(prompt, config.model, model) for prompt in PROMPTS]
    capacity = max(len(tokens), max(map(len, prompts)) + _ANSWER)
    sizes = Sizes(1, config.execution.prefill_chunk, capacity)
    backend = loading.start_device(config, progress, 1)
    teacher = loading.load_teacher(model, backend, progress, sizes=sizes, taps=())
    caches = {id(each) for each in (*teacher.cache.keys, *teacher.cache.values)}
    held = {id(p): p for p in teacher.get_parameters() if id(p) not in caches}
    with progress.steps(f"reading the text in {weights}", len(tokens)) as step:
        rows = []
        for piece in Reader(teacher, Logits(teacher), config.execution.prefill_chunk).pieces([(0, tokens)]):
            rows.append(piece.values[0])
            for _ in rows[len(rows) - 1]:
                step.advance()
    log_probs = _log_softmax(np.concatenate(rows)[:-1])
    names = {"name": NONE, "kernels": backend.name, "dtype": config.model.dtype}
    graphs = Graphs(teacher, NoDrafter(), sizes, **names)
    engine = Engine(graphs, model.tokenizer, directory=model.files.directory)
    answers = []
    with progress.steps(f"answering in {weights}", len(prompts)) as step:
        for prompt in prompts:
            (answer,) = engine.generate([prompt], GenerationOptions(_ANSWER))
            if answer.finish_reason == "interrupted":
                raise KeyboardInterrupt
            answers.append(answer.token_ids)
            step.advance()
    surprise = -log_probs[np.arange(len(tokens) - 1), tokens[1:]]
    return _Run(log_probs, surprise, answers, sum(each.asnumpy().nbytes for each in held.values()))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """``[T, V]`` float32, in place."""
    logits -= logits.max(1, keepdims=True)
    for row in logits:  # no second array of this size
        row -= np.log(np.exp(row).sum(dtype=np.float64)).astype(np.float32)
    return logits


def lines(found: Sequence[Quality]) -> list[tuple[str, ...]]:
    """A table for people, a row each and one of titles."""
    titles = ("weights", "MB", "perplexity", "KL, nats", "same top token", "same answers, tokens")
    rows = [
        (
            each.format,
            f"{each.weight_bytes / 1e6:.0f}",
            f"{each.perplexity:.3f}",
            f"{each.divergence:.5f}",
            f"{100 * each.top:.1f} %",
            f"{', '.join(map(str, each.answers))} of {each.answer_tokens}",
        )
        for each in found
    ]
    return [titles, *rows]
