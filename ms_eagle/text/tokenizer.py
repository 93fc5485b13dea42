"""Text to token ids and back, whatever the format of the vocabulary.

Every token stands for a fixed run of bytes, so decoding is concatenation followed by UTF-8 decoding. That
makes streaming exact by construction: :class:`IncrementalDecoder` serves both :meth:`Tokenizer.decode` and
:class:`ms_eagle.text.stream.TextStream`.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from ms_eagle.errors import UserError
from ms_eagle.text.settings import AddedToken, TokenizerSettings

MARK = "\U0010fffe"
"""Stands before every token that `Tokenizer.encode_marked` is to read; not a character, so no text has it."""

# Tokens that end a turn in the chat formats of known model families: Llama 3 and 4, ChatML (Qwen, SmolLM2),
# Phi, Gemma, OpenChat, Kimi. Many files name the end of the text alone where the model was taught to write
# these.
TURN_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<EOT>",
    "[EOT]",
)


class Tokenizer(ABC):
    """What the rest of the package asks of a tokenizer; see ``ms_eagle.text.loading``.

    Attributes:
        vocab_size: one more than the largest token id. The model's own vocabulary may be padded beyond it.
        bos_id, pad_id: ids, or ``None`` where the model has no such token.
        eos_ids: every id that ends a generation: the tokenizer's eos token, ``eos_token_id`` of
            generation_config.json and of config.json, and the `TURN_ENDS` of the vocabulary.
        eos_origins: where each of them was found.
        atoms: the texts that are read as one token wherever they stand, and its id.
        special_ids: ids that :meth:`decode` leaves out by default.
        strips_leading_space: whether encoding puts a space before the text, which decoding then takes away.
    """

    vocab_size: int
    bos_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]
    eos_origins: Mapping[int, str] = MappingProxyType({})
    atoms: Mapping[str, int] = MappingProxyType({})
    special_ids: frozenset[int]
    strips_leading_space: bool

    @property
    def symbols(self) -> Mapping[str, int]:
        """The texts that the vocabulary reads as one token even where atoms are to be text, and its ids."""
        return {}

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

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of ``text``, in which one of `atoms` is a token only behind a `MARK`.

        Everything else is as in :meth:`encode` without added special tokens, white space around the tokens
        and the rule for a leading space included; `symbols` are tokens still.
        """
        return self.encode(text.replace(MARK, ""), add_special_tokens=False, parse_special=False)

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that ``token_id`` adds to the text; its own name for a special token; empty if
        unassigned.
        """

    @abstractmethod
    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """:meth:`encode` for text known to be valid."""

    def stop_ids(self, tokens: Sequence[int | str]) -> tuple[int, ...]:
        """The ids of tokens that a user names, by id or by the name of a special token.

        Raises:
            UserError: an id outside the vocabulary, or a name that no special token has.
        """
        names = {
            self.token_bytes(token).decode(errors="replace"): token for token in sorted(self.special_ids)
        }
        ids = []
        for token in tokens:
            token_id = names.get(token, -1) if isinstance(token, str) else token
            if not 0 <= token_id < self.vocab_size:
                example = min(names, default="<|im_end|>", key=len)
                raise UserError(
                    f"generation.stop_tokens holds {token!r}; expected an id below {self.vocab_size} "
                    f"or the name of a special token, such as {example!r}: other text is for generation.stop."
                )
            ids.append(token_id)
        return tuple(ids)

    def _take_ids(
        self,
        settings: TokenizerSettings,
        find: Callable[[AddedToken | None], int | None],
        added: Mapping[str, int],
    ) -> None:
        """Set ``bos_id``, ``pad_id``, ``eos_ids`` and ``eos_origins``.

        Args:
            settings: what the files say.
            find: looks a token up in the vocabulary.
            added: the tokens that are never made of text, by name.
        """

        def one(role: str, name: str) -> int | None:
            if role in settings.roles:
                return find(settings.roles[role])
            fallback = settings.model_ids[name]
            return fallback[0] if fallback else None

        self.bos_id = one("bos_token", "bos")
        self.pad_id = one("pad_token", "pad")
        eos = find(settings.roles.get("eos_token"))
        origins: dict[int, str] = {}
        for origin, ids in (
            ("the tokenizer's eos_token", () if eos is None else (eos,)),
            ("generation_config.json", settings.generation_eos_ids),
            ("config.json", settings.model_ids["eos"]),
            ("ends a turn", [added[name] for name in TURN_ENDS if name in added]),
        ):
            for token_id in ids:
                origins.setdefault(token_id, origin)
        self.eos_ids, self.eos_origins = tuple(origins), MappingProxyType(origins)


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
