"""The B sequences in flight: which request each slot works on, and what its caches hold.

The committed length ``n`` of a slot is kept here and nowhere else. A slot whose answer is finished takes no
part in any later call: it is named to the graphs as an idle one, with n = 0.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from ms_eagle.cycle.sizes import Facts
from ms_eagle.engine.answer import Answer
from ms_eagle.engine.requests import Completion, Request, Seconds


class Slot:
    """One sequence of the batch.

    Attributes:
        number, request, answer: what it works on; the last one's after its end.
        sequence: prompt and emitted tokens; the caches hold K and V of the first ``n``.
        n: the committed length.
        reused: how many tokens of the prompt the caches held at the start.
        accepted: accepted draft tokens of each cycle.
        begin, decode_begin, end: ``time.perf_counter()`` at admission, before the first cycle, and after the
            last one so far.
    """

    def __init__(self) -> None:
        self.number = -1
        self.request: Request | None = None
        self.answer: Answer | None = None
        self.sequence: list[int] = []
        self.n = 0
        self.reused = 0
        self.accepted: list[int] = []
        self.begin = self.end = 0.0
        self.decode_begin: float | None = None

    @property
    def active(self) -> bool:
        """Whether its answer is unfinished."""
        return self.answer is not None and self.answer.finish_reason is None

    @property
    def unread(self) -> int:
        """Prompt tokens before the last one that the caches do not hold."""
        return max(0, len(self.request.prompt) - 1 - self.n) if self.active else 0

    @property
    def seen(self) -> list[int]:
        """The tokens that the repetition penalty takes for seen."""
        return [*self.sequence, *self.request.options.sampling.penalised] if self.active else []

    def common(self, prompt: Sequence[int]) -> int:
        """How many tokens of the beginning of ``prompt`` the caches hold."""
        return common_prefix(self.sequence[: self.n], prompt)

    def admit(self, number: int, request: Request, answer: Answer) -> None:
        """Begin with a request, keeping what the caches hold of its prompt if it asks for that."""
        length = len(request.prompt)
        # One position is read again: it gives the drafter the token that follows it now.
        kept = max(0, min(self.common(request.prompt), length - 1) - 1) if request.reuse_prefix else 0
        self.number, self.request, self.answer = number, request, answer
        self.begin = self.end = time.perf_counter()
        self.decode_begin = None
        self.reused, self.accepted = kept, []
        if self.active:  # else it needs nothing of the caches, and leaves them as they are
            self.sequence, self.n = list(request.prompt), kept

    def completion(self, facts: Facts, load: float, compile: float) -> Completion:
        """The answer as it is returned; ``load`` and ``compile`` are the engine's seconds."""
        answer, request = self.answer, self.request
        decode_begin = self.begin if self.decode_begin is None else self.decode_begin
        decode = self.end - decode_begin if answer.token_ids else 0.0
        first = answer.first_token_at
        return Completion(
            text=answer.text,
            token_ids=tuple(answer.token_ids),
            prompt_tokens=len(request.prompt),
            reused_tokens=self.reused,
            finish_reason=answer.finish_reason or "interrupted",
            drafter=facts.drafter,
            kernels=facts.kernels,
            mode=facts.mode,
            cycles=len(self.accepted),
            accept_L=tuple(self.accepted) if facts.drafts else None,
            seconds=Seconds(load, compile, decode_begin - self.begin, decode),
            time_to_first_token=None if first is None else first - self.begin,
            tokens_per_second=len(answer.token_ids) / decode if decode > 0 else None,
        )

    def forget(self) -> None:
        """The caches hold nothing of it any more, and its request is dropped."""
        self.request, self.answer = None, None
        self.sequence, self.n = [], 0


class Slots(list[Slot]):
    """All B of them."""

    def __init__(self, batch: int) -> None:
        super().__init__(Slot() for _ in range(batch))

    @property
    def active(self) -> list[int]:
        """Numbers of the slots with an unfinished answer."""
        return [row for row, slot in enumerate(self) if slot.active]

    @property
    def texts(self) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Tokens and script (``Request.script``) of each slot, empty for those that take no part."""
        scripts = [slot.request.script if slot.active and slot.request else () for slot in self]
        return [slot.sequence if slot.active else [] for slot in self], scripts

    def free_for(self, request: Request) -> int | None:
        """The free slot that holds most of a prompt to be reused, else the first; None if none is free."""
        free = [row for row, slot in enumerate(self) if not slot.active]
        if not request.reuse_prefix:
            return free[0] if free else None
        return max(free, key=lambda row: self[row].common(request.prompt), default=None)

    def per_row(self, value: Callable[[Slot], int], rows: Sequence[int]) -> np.ndarray:
        """``value`` of the slots ``rows`` and 0 of the others, int32 ``[B]``."""
        array = np.zeros(len(self), np.int32)
        for row in rows:
            array[row] = value(self[row])
        return array

    def windows(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the next prefill call reads: window ``[B, C + 1]``, start and count ``[B]``, int32."""
        rows = [row for row, slot in enumerate(self) if slot.unread]
        window = np.zeros((len(self), chunk + 1), np.int32)
        for row in rows:
            slot = self[row]
            part = slot.sequence[slot.n : slot.n + chunk + 1]
            window[row, : len(part)] = part
        start = self.per_row(lambda slot: slot.n, rows)
        return window, start, self.per_row(lambda slot: min(slot.unread, chunk), rows)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length
