"""A ``tokenizer.json`` of the Hugging Face ``tokenizers`` library (Llama 3, Qwen, SmolLM2)."""

import json
import re
from pathlib import Path

import tokenizers

from ms_eagle.errors import UserError
from ms_eagle.text.settings import AddedToken, TokenizerSettings
from ms_eagle.text.tokenizer import MARK, Tokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: character to byte.

    Printable Latin-1 characters stand for themselves; the other 68 bytes get U+0100, U+0101, ... in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


class JsonTokenizer(Tokenizer):
    """Encodes with the library; decodes by the bytes of each token.

    Decoding equals the library's wherever the bytes are UTF-8. On ill-formed bytes a byte-fallback vocabulary
    differs: the library replaces every byte of such a run, here its good characters are kept.
    ``clean_up_tokenization_spaces`` is not applied: it changes text that the model wrote.

    An explicit ``add_bos_token``/``add_eos_token`` in tokenizer_config.json decides about those tokens;
    without one the file's own post-processor does.
    """

    def __init__(self, path: Path, settings: TokenizerSettings) -> None:
        self._path = path
        self._tokenizer = _load(path)
        self._literal_tokenizer: tokenizers.Tokenizer | None = None
        self._marking: tuple[tokenizers.Tokenizer, dict[int, int]] | None = None
        self._add_missing(self._tokenizer, settings)

        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self.atoms = {token.content: token_id for token_id, token in added.items()}
        self._take_ids(settings, self._find, self.atoms)
        named = [*settings.roles.values(), *settings.additional]
        ids = {token_id for token_id, token in added.items() if token.special}
        ids.update(token_id for token in named if (token_id := self._find(token)) is not None)
        self.special_ids = frozenset(ids)
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._settings = settings

        kinds, self.strips_leading_space = _decoder_kind(self._tokenizer, path)
        self._alphabet = byte_alphabet() if kinds == "ByteLevel" else None
        self._edges = self._explicit_edges(settings)

    def token_bytes(self, token_id: int) -> bytes:
        """See :meth:`Tokenizer.token_bytes`."""
        if token_id in self._added:
            return self._added[token_id]
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._alphabet is not None:
            try:
                return bytes(self._alphabet[character] for character in piece)
            except KeyError:  # not written in the byte alphabet: plain text
                return piece.encode()
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(_SPACE_MARK, " ").encode()

    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        tokenizer = self._tokenizer if parse_special else self._literal()
        if not add_special_tokens:
            return tokenizer.encode(text, add_special_tokens=False).ids
        if self._edges is None:
            return tokenizer.encode(text, add_special_tokens=True).ids
        before, after = self._edges
        return [*before, *tokenizer.encode(text, add_special_tokens=False).ids, *after]

    def encode_marked(self, text: str) -> list[int]:
        """See :meth:`Tokenizer.encode_marked`."""
        if self._marking is None:
            self._marking = self._made_for_marks()
        tokenizer, ids = self._marking
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return [ids.get(token, token) for token in found]

    def _made_for_marks(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """A tokenizer whose added tokens are called `MARK` and their name, and their ids by its own."""
        parts = json.loads(self._tokenizer.to_str())
        parts["added_tokens"] = []
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(parts))
        ids: dict[int, int] = {}
        for token_id, token in sorted(self._tokenizer.get_added_tokens_decoder().items()):
            flags = {flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
            name = MARK + token.content
            tokenizer.add_tokens([tokenizers.AddedToken(name, special=token.special, **flags)])
            marked = tokenizer.token_to_id(name)
            if marked is not None:
                ids[marked] = token_id
        return tokenizer, ids

    def _literal(self) -> tokenizers.Tokenizer:
        """A second instance that reads special tokens as text; separate, because that is a setting of the
        whole.
        """
        if self._literal_tokenizer is None:
            literal = _load(self._path)
            self._add_missing(literal, self._settings)
            literal.encode_special_tokens = True
            self._literal_tokenizer = literal
        return self._literal_tokenizer

    def _find(self, token: AddedToken | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token.content)

    def _add_missing(self, tokenizer: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        """Add the tokens that tokenizer_config.json lists and tokenizer.json lacks, at exactly their ids."""
        for token_id, token in sorted(settings.added.items()):
            if tokenizer.token_to_id(token.content) is None:
                flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "normalized": False}
                tokenizer.add_tokens([tokenizers.AddedToken(token.content, special=token.special, **flags)])
            own_id = tokenizer.token_to_id(token.content)
            if own_id != token_id:
                raise UserError(
                    f"{self._path}: token {token.content!r} has id {own_id} here and {token_id} in "
                    "tokenizer_config.json; the two files belong to different models"
                )

    def _explicit_edges(self, settings: TokenizerSettings) -> tuple[list[int], list[int]] | None:
        """Ids before and after the text by tokenizer_config.json; None where it states nothing."""
        if settings.add_bos_token is None and settings.add_eos_token is None:
            return None
        edges = []
        for added, role in ((settings.add_bos_token, "bos_token"), (settings.add_eos_token, "eos_token")):
            token_id = self._find(settings.roles.get(role))
            if added and token_id is None:
                raise UserError(f"{self._path}: add_{role} is set, but there is no {role} in the vocabulary")
            edges.append([token_id] if added and token_id is not None else [])
        return edges[0], edges[1]


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class, whatever the damage
        raise UserError(f"{path}: not a readable tokenizer.json ({error}); fetch the file again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _decoder_kind(tokenizer: tokenizers.Tokenizer, path: Path) -> tuple[str, bool]:
    """``("ByteLevel" | "Metaspace", strips one leading space)`` from the file's decoder."""
    decoder = tokenizer.decoder
    steps = [] if decoder is None else [json.loads(decoder.__getstate__())]
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["decoders"]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return "ByteLevel", False
    marks = [step for step in steps if step["type"] == "Replace"]
    if all(_SPACE_MARK in json.dumps(step["pattern"], ensure_ascii=False) for step in marks):
        if "ByteFallback" in kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return "Metaspace", any(step["type"] == "Strip" and step["start"] for step in steps)
        if kinds == {"Metaspace"}:
            return "Metaspace", steps[0]["prepend_scheme"] != "never"
    raise UserError(
        f"{path}: decoder {sorted(kinds) or 'none'} is not supported; "
        "expected ByteLevel, ByteFallback or Metaspace (Llama, Qwen, SmolLM2)"
    )
