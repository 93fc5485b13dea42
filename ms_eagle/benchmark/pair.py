"""The two engines of a benchmark: the teacher alone and with speculation, wherever they come from."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms

from ms_eagle.config.sections import Config
from ms_eagle.drafters.registry import kind_of
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, GenerationOptions, Request
from ms_eagle.errors import UserError
from ms_eagle.text.template import ChatTemplate

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


class EnginePair:
    """Answers the same prompts with the teacher alone and with speculation.

    Both engines use the same caches. No answer reuses what the caches hold, so that neither can profit from
    the other, and a turn does not depend on those before it but through the text of the conversation.

    Attributes:
        teacher, speculative: the engines.
        template: how messages become a prompt.
        warm_up_seconds: of first runs after compiling.
    """

    def __init__(self, teacher: Engine, speculative: Engine, template: ChatTemplate) -> None:
        self.teacher, self.speculative, self.template = teacher, speculative, template
        self.warm_up_seconds = 0.0

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
        return _timed(self.teacher, [Request(prompt, options) for prompt in prompts])

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
        return _timed(self.speculative, self.requests(prompts, options, known))

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        known: Sequence[Answer] | None = None,
    ) -> list[Request]:
        """What the speculative engine is asked, with scripts where its drafter needs them."""
        scripts: list[list[int]] = [[] for _ in prompts]
        if self.speculative.graphs.facts.scripted:
            known = known or self.alone(prompts, options)
            scripts = [[*p, *a.completion.token_ids] for p, a in zip(prompts, known, strict=True)]
        return [
            Request(prompt, options, script=script) for prompt, script in zip(prompts, scripts, strict=True)
        ]

    def margin(self, tokens: Sequence[int]) -> float | None:
        """How far the teacher's best logit after ``tokens`` lies above the second best; None if not known."""
        return None


def check_drafter(config: Config) -> None:
    """Refuse a configuration without a drafter.

    Raises:
        UserError: ``drafter.kind`` proposes nothing.
    """
    if not kind_of(config).drafts:
        raise UserError(
            f"drafter.kind is {config.drafter.kind}, so there is nothing to compare; expected a head "
            "(--drafter HEAD) or, to measure the machinery without one, --drafter synthetic"
        )


def _timed(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """Answer from an idle device to an idle one; what is left of its work at the end counts as decoding."""
    ms.runtime.synchronize()
    completions = engine.run(requests)
    returned = time.perf_counter()
    ms.runtime.synchronize()
    rest = time.perf_counter() - returned
    if any(completion.finish_reason == "interrupted" for completion in completions):
        raise KeyboardInterrupt
    return [Answer(c, c.seconds.prefill, c.seconds.decode + rest) for c in completions]
