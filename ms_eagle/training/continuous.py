"""Continuous batching for long lists of prompts: a finished sequence makes room for the next at once.

`Engine.generate` runs groups, in which finished rows idle until the longest answer ends: with answers of
very different lengths half of the rows do. Here the same compiled Cells run without groups. A new prompt
keeps what its row's cache has in common with it, and its remaining tokens go through the cycle, whose choice
is ignored until the last of them; only when many tokens wait at once does a prefill call, which always costs
all B x C places, read them (Yu et al., "Orca", OSDI 2022, iteration-level scheduling).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_eagle.engine.answer import Answer
from ms_eagle.engine.engine import FAULT, TOKENS, Engine, common_prefix
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams, params_tensor
from ms_eagle.sampling.uniforms import uniform_table
from ms_eagle.tree.report import HEALTHY

_WORTH_A_PREFILL = 0.25  # share of a prefill call's places: below it, rows of the cycle are cheaper


@dataclass(frozen=True)
class Request:
    """A prompt of at least one token, shorter than the engine's capacity, and how it is continued."""

    key: str
    prompt: Sequence[int]
    options: GenerationOptions


@dataclass(frozen=True)
class Reply:
    """The tokens that continue a prompt, end of sequence included; ``finish_reason`` as in `Completion`."""

    key: str
    token_ids: tuple[int, ...]
    finish_reason: str


class _Slot:
    """A request on its way through one row of the batch."""

    def __init__(self, request: Request, answer: Answer, committed: int) -> None:
        self.request, self.answer = request, answer
        self.sequence = list(request.prompt)
        self.n = committed

    @property
    def unread(self) -> int:
        """Prompt tokens before the last one that the cache does not hold."""
        return max(0, len(self.request.prompt) - 1 - self.n)


class ContinuousBatch:
    """Answers requests with a teacher-only engine, B at a time; between runs nothing is in flight.

    The engine's caches are changed behind its back: do not reuse a prefix of them afterwards.
    """

    def __init__(self, engine: Engine) -> None:
        """Take an engine without a drafter.

        Raises:
            ValueError: it has one.
        """
        self._graphs, self._tokenizer = engine.graphs, engine.tokenizer
        if self._graphs.drafter != "none":
            raise ValueError(f"expected an engine without a drafter, found {self._graphs.drafter}")
        self._cached: list[list[int]] = [[] for _ in range(self._graphs.batch)]

    @property
    def capacity(self) -> int:
        """Most tokens of a sequence, prompt and answer together."""
        return self._graphs.capacity

    def run(self, next_request: Callable[[], Request | None], *, greedy: bool) -> Iterator[Reply]:
        """Answer requests until there are no more, in the order in which they finish.

        Args:
            next_request: gives the next request, or None while there is none. It is asked again after every
                reply, so that a reply can lead to a new request; that one finds its prefix in the cache.
            greedy: all requests are greedy; else a graph that samples runs, which takes longer. Repetition
                penalties are not applied.

        Raises:
            UserError: logits are not finite.
        """
        slots: list[_Slot | None] = [None] * self._graphs.batch
        state = self._graphs.initial_state()
        controls = self._controls(slots)
        while True:
            if self._fill(slots, next_request):
                controls = self._controls(slots)
            if not any(slots):
                return
            if self._worth_a_prefill(slots):
                state = self._prefill(slots, state)
                continue
            state = self._cycle(slots, controls, greedy, state)
            for row, slot in enumerate(slots):
                if slot is not None and slot.answer.finish_reason is not None:
                    slots[row] = None
                    yield Reply(slot.request.key, tuple(slot.answer.token_ids), slot.answer.finish_reason)

    def _fill(self, slots: list[_Slot | None], next_request: Callable[[], Request | None]) -> bool:
        """Give every empty row a request; returns whether any got one."""
        changed = False
        for row, slot in enumerate(slots):
            request = next_request() if slot is None else None
            if request is not None:
                length = len(request.prompt)
                limit = min(request.options.max_new_tokens, self.capacity - length)
                if not 0 < length < self.capacity or limit < 1:
                    raise ValueError(f"{request.key}: {length} tokens leave no room for an answer")
                common = common_prefix(self._cached[row], request.prompt[: length - 1])
                slots[row] = _Slot(request, Answer(self._tokenizer, request.options, limit, None), common)
                changed = True
        return changed

    def _controls(self, slots: Sequence[_Slot | None]) -> tuple[Tensor, Tensor]:
        """Sampling numbers ``[B, 15]`` and uniforms ``[B, P]`` of the rows; idle ones get any."""
        idle = SamplingParams()
        samplings = [idle if slot is None else slot.request.options.sampling for slot in slots]
        tables = np.stack([uniform_table(each.seed, self._graphs.positions) for each in samplings])
        return Tensor(params_tensor(samplings)), Tensor(tables)

    def _worth_a_prefill(self, slots: Sequence[_Slot | None]) -> bool:
        waiting = sum(min(slot.unread, self._graphs.chunk) for slot in slots if slot is not None)
        return waiting >= max(1, _WORTH_A_PREFILL * self._graphs.batch * self._graphs.chunk)

    def _prefill(self, slots: Sequence[_Slot | None], state: Tensor) -> Tensor:
        """Read up to C prompt tokens of every row."""
        batch, chunk = self._graphs.batch, self._graphs.chunk
        window = np.zeros((batch, chunk + 1), np.int32)
        start, count = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
        for row, slot in enumerate(slots):
            if slot is not None:
                start[row], count[row] = slot.n, min(slot.unread, chunk)
                part = slot.sequence[slot.n : slot.n + chunk + 1]
                window[row, : len(part)] = part
        state = self._graphs.prefill()(Tensor(window), Tensor(start), Tensor(count), state)
        for row, slot in enumerate(slots):
            if slot is not None:
                slot.n += int(count[row])
                self._cached[row] = slot.sequence[: slot.n]
        return state

    def _cycle(
        self, slots: Sequence[_Slot | None], controls: tuple[Tensor, Tensor], greedy: bool, state: Tensor
    ) -> Tensor:
        """One token of every row: the next of its prompt, or one of its answer."""
        graphs = self._graphs
        root, n = np.zeros(graphs.batch, np.int32), np.zeros(graphs.batch, np.int32)
        for row, slot in enumerate(slots):
            if slot is not None:
                root[row], n[row] = slot.sequence[slot.n], slot.n
        active = np.array([slot is not None for slot in slots])
        report, state = graphs.cycle(greedy)(Tensor(root), Tensor(n), Tensor(active), *controls, state)
        report = report.asnumpy()
        for row, slot in enumerate(slots):
            if slot is None:
                continue
            if report[row, FAULT] != HEALTHY:
                graphs.clear()
                self._cached = [[] for _ in self._cached]
                raise UserError(
                    f"the model's logits are not finite (NaN or infinity) after {slot.n + 1} tokens: use "
                    "another model.dtype, or check its weights."
                )
            slot.n += 1
            self._cached[row] = slot.sequence[: slot.n]
            if slot.n == len(slot.sequence):
                token = int(report[row, TOKENS])
                slot.sequence.append(token)
                slot.answer.take([token])
        return state
