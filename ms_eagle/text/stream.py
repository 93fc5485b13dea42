"""Streaming text: whole characters only, and nothing that may still turn out to be a stop string."""

from collections.abc import Sequence

from ms_eagle.errors import UserError
from ms_eagle.text.tokenizer import IncrementalDecoder, Tokenizer


class TextStream:
    """The text of one generation, handed out as its tokens arrive.

    The pieces returned by :meth:`push` and :meth:`finish` join to ``tokenizer.decode(all ids)``, cut before
    the stop string that is complete first (of two that end at the same character, the longer). Stop strings
    are looked for in the text: they may begin inside a token and span several, and special tokens are not
    part of it. The cost of a token does not depend on how much text came before.

    Raises:
        UserError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str):
            raise TypeError("stops must be a sequence of strings, not one string")
        if not all(stops):
            raise UserError("a stop string is empty; expected at least one character, or no stop string")
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = tuple(stops)
        self._held = ""
        self._stopped = False
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; nothing comes after it."""
        return self._stopped

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is now certain. Empty once :attr:`stopped`."""
        if self._finished:
            raise ValueError("push after finish")
        if self._stopped:
            return ""
        return self._release(self._decoder.push(token_id))

    def finish(self) -> str:
        """The rest: text held back, and U+FFFD for a character that never got all its bytes."""
        if self._finished or self._stopped:
            self._finished = True
            return ""
        self._finished = True
        text = self._release(self._decoder.finish())
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        """Add ``new`` to the text and return what can no longer be part of a stop string."""
        text = self._held + new
        ends = [(at + len(stop), -len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, length = min(ends)
            self._stopped, self._held = True, ""
            return text[: end + length]
        begun = (text[-n:] for s in self._stops for n in range(1, len(s)) if text.endswith(s[:n]))
        self._held = max(begun, key=len, default="")
        return text[: len(text) - len(self._held)]
