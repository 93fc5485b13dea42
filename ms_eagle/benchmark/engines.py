"""The two engines of a benchmark, the teacher alone and with its drafter, over one set of weights."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms

from ms_eagle.benchmark.margin import MarginGraphs
from ms_eagle.chat import ChatTemplate, load_template
from ms_eagle.config import Config
from ms_eagle.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.generation import Completion, GenerationOptions
from ms_eagle.graphs import TeacherGraphs
from ms_eagle.loading import load_engine
from ms_eagle.progress import Progress
from ms_eagle.reference import ReferenceGraphs

_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Answer:
    """A completion with the times of a benchmark, in seconds.

    Attributes:
        completion: the engine's.
        prefill: reading the prompt, the device's work included.
        decode: from there to the last token, until the device is idle.
    """

    completion: Completion
    prefill: float
    decode: float

    @property
    def rate(self) -> float | None:
        """New tokens per second of decoding."""
        tokens = len(self.completion.token_ids)
        return tokens / self.decode if tokens and self.decode > 0 else None

    @property
    def total(self) -> float:
        """Prompt and answer together."""
        return self.prefill + self.decode


class Pair:
    """Answers the same prompts with the teacher alone and with speculation.

    Both engines use the same caches. No answer reuses what the caches hold, so that neither can profit from
    the other, and a turn does not depend on those before it but through the text of the conversation.

    Attributes:
        teacher, speculative: the engines.
        template: how messages become a prompt.
        synthetic: the drafter is scripted: it needs the teacher's answer before it can draft.
        warm_up_seconds: of first runs after compiling.
    """

    def __init__(self, engine: Engine, config: Config) -> None:
        """Take an engine with a drafter; any subclass of ``Engine`` is replaced by a plain one."""
        staged = isinstance(engine.graphs, ReferenceGraphs)
        performance = engine.graphs.performance if staged else engine.graphs
        alone = TeacherGraphs(
            performance.teacher,
            chunk=performance.chunk,
            capacity=performance.capacity,
            kernels=performance.kernels,
        )
        self._parts = {
            "tokenizer": engine.tokenizer,
            "directory": engine.directory,
            "dtype": config.model.dtype,
            "load_seconds": engine.load_seconds,
        }
        self.performance = performance
        self.teacher = Engine(ReferenceGraphs(alone) if staged else alone, **self._parts)
        self.speculative = Engine(engine.graphs, **self._parts)
        self.template: ChatTemplate = load_template(engine.directory, config.model.chat_template)
        self.synthetic = performance.drafter == "synthetic"
        self.warm_up_seconds = 0.0
        self._margin: MarginGraphs | None = None

    @classmethod
    def load(cls, config: Config, progress: Progress) -> "Pair":
        """Load the model and the drafter of ``config``.

        Raises:
            UserError: there is no drafter, or see ``load_engine``.
        """
        check_drafter(config)
        return cls(load_engine(config, progress), config)

    def warm_up(self, options: GenerationOptions) -> None:
        """Compile both engines and run each once; idempotent."""
        for engine in (self.teacher, self.speculative):
            engine.warm_up(options)
        begin = time.perf_counter()
        prompt = self.template.encode([{"role": "user", "content": "Hello"}], self.teacher.tokenizer)
        short = GenerationOptions(_WARM_UP_TOKENS, options.sampling, ignore_eos=True)
        self.alone([prompt], short)
        self.speculate([prompt], short, None)
        self.warm_up_seconds += time.perf_counter() - begin

    def check(self, prompt: Sequence[int], options: GenerationOptions) -> None:
        """Refuse a prompt that cannot be answered; see ``Engine.check_prompt``."""
        self.speculative.check_prompt(prompt, options)

    def alone(self, prompts: Sequence[Sequence[int]], options: GenerationOptions) -> list[Answer]:
        """Answers of the teacher alone, at most a batch of them.

        Raises:
            UserError: see ``Engine.generate``.
            KeyboardInterrupt: Ctrl-C ended an answer.
        """
        return _timed(self.teacher, prompts, options)

    def speculate(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        known: Sequence[Answer] | None,
    ) -> list[Answer]:
        """Answers with speculation; as ``alone``.

        A scripted drafter follows ``known``, the teacher's answers to the same prompts. Where they are not
        known the teacher answers first, untimed.
        """
        self.script(prompts, options, known)
        return _timed(self.speculative, prompts, options)

    def script(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        known: Sequence[Answer] | None = None,
    ) -> None:
        """Tell a scripted drafter what the teacher says to ``prompts``; other drafters need nothing."""
        if self.synthetic:
            known = known or self.alone(prompts, options)
            scripts = [[*p, *a.completion.token_ids] for p, a in zip(prompts, known, strict=True)]
            self.performance.proposer.follow(scripts)

    def margin(self, tokens: Sequence[int]) -> float:
        """How far the teacher's best logit after ``tokens`` lies above the second best."""
        if self._margin is None:
            graphs = self.performance
            self._margin = MarginGraphs(
                graphs.teacher, chunk=graphs.chunk, capacity=graphs.capacity, kernels=graphs.kernels
            )
        Engine(self._margin, **self._parts).generate([tokens], GenerationOptions(1, ignore_eos=True))
        return self._margin.last()


def check_drafter(config: Config) -> None:
    """Refuse a configuration without a drafter.

    Raises:
        UserError: ``drafter.kind`` is none.
    """
    if config.drafter.kind == "none":
        raise UserError(
            "drafter.kind is none, so there is nothing to compare; expected a head (--drafter HEAD) or, to"
            " measure the machinery without one, --drafter synthetic"
        )


def _timed(engine: Engine, prompts: Sequence[Sequence[int]], options: GenerationOptions) -> list[Answer]:
    """Answer from an idle device to an idle one; what is left of its work at the end counts as decoding."""
    ms.runtime.synchronize()
    completions = engine.generate(prompts, options)
    returned = time.perf_counter()
    ms.runtime.synchronize()
    rest = time.perf_counter() - returned
    if any(completion.finish_reason == "interrupted" for completion in completions):
        raise KeyboardInterrupt
    return [Answer(c, c.seconds.prefill, c.seconds.decode + rest) for c in completions]
