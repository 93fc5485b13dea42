"""Text to token ids and back, whatever the format of the vocabulary.

Every token stands for a fixed run of bytes, so decoding is concatenation followed by UTF-8 decoding. That
makes streaming exact by construction: :class:`IncrementalDecoder` serves both :meth:`Tokenizer.decode` and
:class:`ms_eagle.text.stream.TextStream`.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from ms_eagle.errors import UserError
from ms_eagle.text.settings import AddedToken, TokenizerSettings


class Tokenizer(ABC):
    """What the rest of the package asks of a tokenizer; see ``ms_eagle.text.loading``.

    Attributes:
        vocab_size: one more than the largest token id. The model's own vocabulary may be padded beyond it.
        bos_id, pad_id: ids, or ``None`` where the model has no such token.
        eos_ids: every id that ends a generation: ``eos_token_id`` of generation_config.json (one id or a
            list), else the tokenizer's eos token, else config.json. Empty if none of them names one.
        special_ids: ids that :meth:`decode` leaves out by default.
        strips_leading_space: whether encoding puts a space before the text, which decoding then takes away.
    """

    vocab_size: int
    bos_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    strips_leading_space: bool

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens`` adds the beginning-of-text (and end-of-text) token if the tokenizer is set to
        do so. With ``parse_special`` the text of a special token becomes that token, which a rendered chat
        template needs; without it such text stays ordinary text, which is right for untrusted text outside
        a template.
        Two kinds of token are matched even then, because the vocabulary itself defines them as atoms: added
        tokens not marked special, and user-defined symbols inside a SentencePiece model.

        Raises UserError if ``text`` holds a lone surrogate (bytes that were not valid UTF-8).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text is not valid Unicode at character {error.start} ({text[error.start]!r}); "
                "expected text that was valid UTF-8"
            ) from error
        return self._encode(text, add_special_tokens, parse_special)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``.

        Bytes that are not UTF-8 become U+FFFD, one for each maximal ill-formed run (Unicode 3.9,
        "substitution of maximal subparts"). An id that has no token, as in a padded vocabulary, adds
        nothing.
        """
        decoder = IncrementalDecoder(self, skip_special_tokens=skip_special_tokens)
        pieces = [decoder.push(int(token_id)) for token_id in ids]
        return "".join(pieces) + decoder.finish()

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that ``token_id`` adds to the text; its own name for a special token; empty if
        unassigned.
        """

    @abstractmethod
    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """:meth:`encode` for text known to be valid."""

    def _take_ids(self, settings: TokenizerSettings, find: Callable[[AddedToken | None], int | None]) -> None:
        """Set ``bos_id``, ``pad_id`` and ``eos_ids``; ``find`` looks a token up in the vocabulary."""

        def one(role: str, name: str) -> int | None:
            if role in settings.roles:
                return find(settings.roles[role])
            fallback = settings.model_ids[name]
            return fallback[0] if fallback else None

        self.bos_id = one("bos_token", "bos")
        self.pad_id = one("pad_token", "pad")
        eos = find(settings.roles.get("eos_token"))
        self.eos_ids = settings.generation_eos_ids or (
            (eos,) if eos is not None else settings.model_ids["eos"]
        )


class IncrementalDecoder:
    """Decodes one token at a time at constant cost; the pieces join to exactly the text of the whole."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        """The characters that ``token_id`` completes. Raises ValueError for a negative id."""
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        if token_id in self._skipped:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """U+FFFD for a character left unfinished at the end of the text, else nothing."""
        return self._utf8.decode(b"", final=True)
