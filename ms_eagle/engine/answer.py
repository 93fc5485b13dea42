"""One answer while it grows: which tokens count, what text may be shown, and when it ends."""

import time
from collections.abc import Iterable

from ms_eagle.engine.loops import Loops
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.text.stream import TextStream
from ms_eagle.text.tokenizer import Tokenizer


class Answer:
    """Takes emitted tokens one by one: a run of accepted tokens ends exactly where single tokens would.

    Attributes:
        token_ids: the tokens that count; those emitted after the end are not among them.
        text: the text shown so far.
        finish_reason: None while the answer grows, then ``stop``, ``length``, ``loop`` or ``interrupted``.
        first_token_at: ``time.perf_counter()`` at the first token, or None.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: GenerationOptions,
        limit: int,
    ) -> None:
        """Start an answer of at most ``limit`` tokens."""
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        ends = tokenizer.eos_ids if options.eos_ids is None else options.eos_ids
        self._eos = frozenset() if options.ignore_eos else frozenset(ends)
        self._stream = TextStream(tokenizer, options.stop)
        self._loops = Loops() if options.stop_loops else None
        self._limit = limit
        if limit == 0:
            self.end("length")

    def take(self, tokens: Iterable[int]) -> None:
        """Add emitted tokens until the answer ends; the rest are dropped."""
        for token in tokens:
            if self.finish_reason is not None:
                return
            if self.first_token_at is None:
                self.first_token_at = time.perf_counter()
            self.token_ids.append(token)
            if token in self._eos:
                self.end("stop")
                return
            self.text += self._stream.push(token)
            if self._stream.stopped:
                self.end("stop")
            elif self._loops is not None and self._loops.push(token):
                self.end("loop")
            elif len(self.token_ids) == self._limit:
                self.end("length")

    def end(self, reason: str) -> None:
        """Finish the answer and show the text that was held back; a finished answer stays as it is."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.text += self._stream.finish()
