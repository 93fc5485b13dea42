"""Streaming text: whole characters only, and nothing that may still turn out to be a stop string."""

from collections.abc import Sequence

from ms_eagle.errors import UserError
from ms_eagle.text.tokenizer import IncrementalDecoder, Tokenizer


class _StopMatcher:
    """Follows one stop string through the text, character by character (Knuth, Morris and Pratt 1977).

    ``matched`` is the length of the longest prefix of the stop string that the text so far ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        # _shorter[i]: length of the longest proper prefix of stop[:i + 1] that it also ends with.
        self._shorter = [0] * len(stop)
        for index in range(1, len(stop)):
            length = self._shorter[index - 1]
            while length and stop[index] != stop[length]:
                length = self._shorter[length - 1]
            self._shorter[index] = length + (stop[index] == stop[length])

    def advance(self, character: str) -> bool:
        """Take one more character; True if the stop string is now complete."""
        while self.matched and character != self.stop[self.matched]:
            self.matched = self._shorter[self.matched - 1]
        if character == self.stop[self.matched]:
            self.matched += 1
        return self.matched == len(self.stop)


class TextStream:
    """The text of one generation, handed out as its tokens arrive.

    The pieces returned by :meth:`push` and :meth:`finish` join to ``tokenizer.decode(all ids)``, cut before
    the stop string that is complete first (of two that end at the same character, the longer). Stop strings
    are looked for in
    the text: they may begin inside a token and span several, and special tokens are not part of it. The
    cost of a token does not depend on how much text came before.

    Raises UserError for an empty stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str):
            raise TypeError("stops must be a sequence of strings, not one string")
        if not all(stops):
            raise UserError("a stop string is empty; expected at least one character, or no stop string")
        self._decoder = IncrementalDecoder(tokenizer)
        self._matchers = [_StopMatcher(stop) for stop in stops]
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
        start = len(self._held)
        text = self._held + new
        for index in range(start, len(text) if self._matchers else start):
            # A list, not a generator: every matcher must see every character.
            complete = [matcher.advance(text[index]) for matcher in self._matchers]
            if any(complete):
                longest = max(
                    matcher.matched for matcher, done in zip(self._matchers, complete, strict=True) if done
                )
                self._stopped, self._held = True, ""
                return text[: index + 1 - longest]
        hold = max((matcher.matched for matcher in self._matchers), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]
