"""What is asked of a generation and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ms_eagle.cycle.sizes import Facts
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams


@dataclass(frozen=True)
class GenerationOptions:
    """How one prompt is continued.

    Attributes:
        max_new_tokens: at most so many tokens; 0 gives an empty answer.
        sampling: how a token is chosen.
        stop: strings that end the answer; the answer is cut before the first of them.
        ignore_eos: go on after an end-of-sequence token.
        eos_ids: tokens that end the sequence; None takes the model's own.
        stop_loops: end an answer that goes round in circles, see ``loops.Loops``.

    Raises:
        UserError: a ``max_new_tokens`` that is negative or no integer, or an empty stop string.
    """

    max_new_tokens: int = 256
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] | None = None
    stop_loops: bool = False

    def __post_init__(self) -> None:
        new = self.max_new_tokens
        if isinstance(new, bool) or not isinstance(new, int | np.integer) or new < 0:
            raise UserError(f"generation.max_new_tokens is {new!r}; expected a whole number of at least 0.")
        if "" in self.stop:
            raise UserError("generation.stop holds an empty string; expected text that can end an answer.")


class TurnName(NamedTuple):
    """Which answer of a run is meant.

    Attributes:
        prompt: names the dialog, such as ``prompts.jsonl:3``.
        turn: counts its answers from 1.
    """

    prompt: str
    turn: int


@dataclass(frozen=True)
class Request:
    """A prompt and how it is continued.

    Attributes:
        prompt: token ids, at least one.
        options: of the answer.
        name: what it is called in a trace.
        reuse_prefix: keep what a slot's caches hold of its beginning already (multi-turn chat).
        script: the whole sequence to come, prompt included, for a scripted drafter.
    """

    prompt: Sequence[int]
    options: GenerationOptions
    name: TurnName | None = None
    reuse_prefix: bool = False
    script: Sequence[int] = ()


@dataclass(frozen=True)
class Seconds:
    """Wall time of a run's parts, in seconds; load and compile are the engine's, spent once."""

    load: float
    compile: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        text: the answer, cut before a stop string; without the end-of-sequence token.
        token_ids: all tokens the teacher emitted for it, end-of-sequence included.
        prompt_tokens: length of the prompt; reused_tokens: how many of them were in the cache already.
        finish_reason: ``stop`` (end of sequence or stop string), ``length`` (limit or capacity),
            ``loop`` (where ``stop_loops`` is set) or ``interrupted`` (Ctrl-C).
        drafter, kernels, mode: what produced it.
        cycles: teacher passes of the decode phase.
        accept_L: accepted draft tokens of each cycle; None without a drafter.
        seconds: wall time by part.
        time_to_first_token: seconds from the start of prefill to the first token; None if there is none.
        tokens_per_second: new tokens over decode time; None if there is none.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    reused_tokens: int
    finish_reason: str
    drafter: str
    kernels: str
    mode: str
    cycles: int
    accept_L: tuple[int, ...] | None
    seconds: Seconds
    time_to_first_token: float | None
    tokens_per_second: float | None

    @property
    def new_tokens(self) -> int:
        """How many tokens the teacher emitted."""
        return len(self.token_ids)

    def unsaid(self, drafter: str) -> "Completion":
        """The empty answer of a drafter that was interrupted while the teacher rehearsed this one."""
        return replace(
            self,
            text="",
            token_ids=(),
            finish_reason="interrupted",
            drafter=drafter,
            cycles=0,
            accept_L=(),
            time_to_first_token=None,
            tokens_per_second=None,
        )


@dataclass(frozen=True)
class Progress:
    """What a step of the engine did for one request.

    Attributes:
        number: which request, as ``Engine.submit`` returned it.
        tokens: new tokens of its answer, and text: new text; either may be empty.
        completion: the whole answer once it is finished, else None.
    """

    number: int
    tokens: tuple[int, ...]
    text: str
    completion: Completion | None = None


def check_prompt(prompt: Sequence[int], options: GenerationOptions, facts: Facts) -> None:
    """Refuse a prompt that cannot be continued.

    Raises:
        UserError: it is empty, leaves no room for an answer, or holds an id outside the vocabulary.
    """
    capacity, highest = facts.sizes.capacity, facts.vocab_size - 1
    if not prompt:
        raise UserError("the prompt is empty; expected at least one token: write some text.")
    if len(prompt) >= capacity and options.max_new_tokens > 0:
        raise UserError(
            f"the prompt has {len(prompt)} tokens, which leaves no room for an answer in "
            f"model.max_length={capacity}: shorten it or raise model.max_length."
        )
    outside = next((token for token in prompt if not 0 <= token <= highest), None)
    if outside is not None:
        raise UserError(
            f"the prompt holds the token id {outside}, outside "
            f"the model's 0..{highest}: is the tokenizer that of another model?"
        )
