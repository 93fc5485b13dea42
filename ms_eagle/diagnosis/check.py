"""Why is acceptance low? A head is measured against its teacher, and the usual suspects are tried.

docs/check_head.md explains the figures and the verdicts.
"""

from collections.abc import Sequence
from pathlib import Path

from ms_eagle import loading
from ms_eagle.config.sections import Config, ModelSection
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.diagnosis.agreement import Agreement, HeadMeter, Passage, TeacherReader
from ms_eagle.diagnosis.report import HeadReport
from ms_eagle.diagnosis.suspects import Reading, as_it_is, suspects
from ms_eagle.diagnosis.verdict import Suspect, judge, looks_low
from ms_eagle.drafters.base import NoDrafter
from ms_eagle.drafters.eagle3 import blueprint
from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.checkpoint import Head, load_head
from ms_eagle.drafters.registry import NONE
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.models.backend import Backend
from ms_eagle.models.teacher import Teacher
from ms_eagle.system import json_file
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template
from ms_eagle.tree.shape import TreeShape

PROMPTS = (
    "Explain in a few sentences why the sky is blue at noon and red in the evening.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and one example.",
    "I am moving to a small flat. List five things to think about before I buy furniture.",
)
_ANSWER = 128  # tokens of each
_LONGEST = 512  # tokens of a passage: attention over all chains grows with the square of it


def check_head(
    config: Config, text: tuple[str, str] | None = None, progress: Progress | None = None
) -> HeadReport:
    """Measure the head of ``drafter.source`` on the teacher's own answers, or on a text.

    On a text the depths past 1 count only where it goes on as the teacher would.

    Args:
        config: tree.depth and tree.branch say how far and how wide to measure.
        text: name and content of a text to read instead; cut after a few hundred tokens.
        progress: shows what is going on.

    Raises:
        UserError: there is no head, it cannot be loaded for this teacher, or the text is too short.
    """
    progress = progress or Progress(quiet=True)
    if config.drafter.source is None:
        raise UserError(
            "drafter.source is missing, so there is no head to check: set it to the directory of a head or "
            "to hf:org/name."
        )
    shape = TreeShape(config.tree.budget, config.tree.depth, config.tree.branch)
    model = loading.open_model(config, progress)
    directory = blueprint.locate(config, progress)
    asked = config.drafter
    head = load_head(directory, teacher=model.decoder, **blueprint.overrules(config))
    shape.check_vocabulary(head.config.draft_vocab_size)
    backend = loading.start_device(config, progress, shape.depth)
    plain, others = as_it_is(head), suspects(head, model.decoder)
    capacity = min(config.model.max_length, _LONGEST)
    teacher = loading.load_teacher(
        model,
        backend,
        progress,
        sizes=Sizes(1, config.execution.prefill_chunk, capacity),
        taps=tuple(sorted({tap for reading in (plain, *others) for tap in reading.taps})),
    )
    passages = Passages(config, model, teacher, backend.name, capacity, progress).read(text)
    bench = Bench(head, teacher, backend, passages, shape)
    agreement, tried = diagnose(bench, plain, others, progress)
    return HeadReport(
        source=asked.source or "",
        head=head,
        taps_from=_taps_from(directory, asked.taps is not None),
        text=f"{len(PROMPTS)} answers of the teacher" if text is None else text[0],
        branch=shape.branch,
        agreement=agreement,
        suspects=tried,
        verdict=judge(agreement, tried, config.model.dtype),
    )


def diagnose(
    bench: "Bench", plain: Reading, others: Sequence[Reading], progress: Progress
) -> tuple[Agreement, tuple[Suspect, ...]]:
    """Measure a head as it is and, if it does badly, every other reading of it."""
    with progress.steps("measuring the head"):
        agreement = bench.measure(plain)
    if not looks_low(agreement):
        return agreement, ()
    tried = []
    with progress.steps("trying other readings of it", len(others)) as step:
        for reading in others:
            tried.append(Suspect(reading.name, reading.advice, bench.measure(reading)))
            step.advance()
    return agreement, tuple(tried)


class Passages:
    """Makes the passages that a head is measured on."""

    def __init__(
        self,
        config: Config,
        model: loading.Model,
        teacher: Teacher,
        kernels: str,
        capacity: int,
        progress: Progress,
    ) -> None:
        """``teacher`` is one of batch 1 with ``capacity + 2`` slots and every tap of interest."""
        self._config, self._model, self._progress, self._capacity = config, model, progress, capacity
        self._teacher, self._kernels = teacher, kernels
        self._reader = TeacherReader(teacher, config.execution.prefill_chunk)

    def read(self, text: tuple[str, str] | None) -> list[Passage]:
        """The teacher's answers, or the given text."""
        if text is None:
            return self._answers()
        name, content = text
        tokens = self._model.tokenizer.encode(content)[: self._capacity]
        if len(tokens) < 3:
            raise UserError(f"{name} has {len(tokens)} tokens; expected at least 3, better some hundred.")
        return [self._reader.read(tokens, first=1)]

    def _answers(self) -> list[Passage]:
        options = GenerationOptions(_ANSWER)
        sizes = Sizes(1, self._config.execution.prefill_chunk, self._capacity)
        names = {"name": NONE, "kernels": self._kernels, "dtype": self._config.model.dtype}
        graphs = Graphs(self._teacher, NoDrafter(), sizes, **names)
        engine = Engine(graphs, self._model.tokenizer, directory=self._model.files.directory)
        passages = []
        with self._progress.steps("letting the teacher answer", len(PROMPTS)) as step:
            for prompt in PROMPTS:
                tokens = encode_question(prompt, self._config.model, self._model)
                (answer,) = engine.generate([tokens], options)
                if answer.finish_reason == "interrupted":
                    raise KeyboardInterrupt
                passages.append(self._reader.read([*tokens, *answer.token_ids], first=len(tokens) - 1))
                step.advance()
        return passages


def encode_question(prompt: str, section: ModelSection, model: loading.Model) -> list[int]:
    """Through the model's chat template, for that is what heads are trained on; raw without one."""
    try:
        template = load_template(model.files.directory, section.chat_template)
    except UserError:
        if section.chat_template is not None:
            raise
        return model.tokenizer.encode(prompt)
    system = [] if section.system_prompt is None else [{"role": "system", "content": section.system_prompt}]
    messages = [*system, {"role": "user", "content": prompt}]
    return template.encode(messages, model.tokenizer, thinking=section.thinking)


class Bench:
    """Measures readings of a head one after the other, building a drafter where the last one will not do."""

    def __init__(
        self,
        head: Head,
        teacher: Teacher,
        backend: Backend,
        passages: Sequence[Passage],
        shape: TreeShape,
    ) -> None:
        """The arguments are those of ``HeadMeter``; ``passages`` is what every reading is measured on."""
        self._head, self._teacher, self._backend = head, teacher, backend
        self._passages, self._shape = passages, shape
        self._config, self._meter = None, None

    def measure(self, reading: Reading) -> Agreement:
        """Agreement of one reading."""
        if reading.config != self._config:
            self._meter = None  # freed before its successor is built
            self._meter = HeadMeter(
                Head(reading.config, self._head.tensors, self._head.d2t, {}),
                self._teacher,
                self._backend,
                rows=max(passage.rows for passage in self._passages),
                depth=self._shape.depth,
                branch=self._shape.branch,
            )
            self._config = reading.config
        return self._meter.measure(self._passages, reading.taps, reading.target_ids)


def _taps_from(directory: Path, asked: bool) -> str:
    if asked:
        return "drafter.taps"
    config = json_file.read_object(directory / "config.json")
    for place in ("", "eagle_config", "transformer_layer_config"):
        options = config.get(place) if place else config
        ids = options.get(head_taps.KEY) if isinstance(options, dict) else None
        if ids:
            return f"{place and place + '.'}{head_taps.KEY} {ids} of config.json"
    return "the default, config.json names none"
