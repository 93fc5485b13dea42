"""A SentencePiece ``tokenizer.model`` (Llama 2, openPangu)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import sentencepiece

from ms_eagle.errors import UserError
from ms_eagle.text.settings import AddedToken, TokenizerSettings
from ms_eagle.text.tokenizer import MARK, Tokenizer

_SPACE_MARK = "\u2581"
# Appended to a serialised ModelProto this is merged into it (protobuf merges a repeated message field):
# normalizer_spec (field 3, 2 bytes long) { add_dummy_prefix (field 3) = false }.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
_LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
_PANGU_CLASS = "PanguTokenizer"


class SentencePieceTokenizer(Tokenizer):
    """Encodes like transformers' slow tokenizers of the same files.

    Text is cut at special tokens and each part goes through SentencePiece. Two ways exist, chosen by
    ``legacy`` in tokenizer_config.json. Legacy (the default, and always for openPangu): the model's own
    rule for a leading space applies to every part. Otherwise one space is put before the whole text, and
    none after a special token.

    Special tokens are the control symbols of the model and what the JSON files list. As in transformers' slow
    tokenizers, decoding leaves out bos, eos, unk, pad, ``additional_special_tokens`` and the control symbols
    that no file lists, but not other listed tokens, whatever their flag: openPangu's ``[unused16]`` and
    ``[unused17]`` around its thinking stay in the text.
    """

    def __init__(self, path: Path, settings: TokenizerSettings) -> None:
        kind = settings.tokenizer_class
        if kind not in (None, _PANGU_CLASS, *_LLAMA_CLASSES):
            raise UserError(
                f"{path}: tokenizer_class {kind!r} is not supported with tokenizer.model; expected one of "
                f"{', '.join((*_LLAMA_CLASSES, _PANGU_CLASS))}, or a tokenizer.json beside it"
            )
        self._legacy = kind == _PANGU_CLASS or settings.legacy is not False
        self._prefix_space = settings.add_prefix_space is not False
        self._processor = _load(path, dummy_prefix=self._legacy)
        self.strips_leading_space = (
            self._processor.normalize("a").startswith(_SPACE_MARK) if self._legacy else self._prefix_space
        )
        self._take_vocabulary(settings)
        self._edges = self._text_edges(settings, path)

    def token_bytes(self, token_id: int) -> bytes:
        """See :meth:`Tokenizer.token_bytes`."""
        if token_id in self._names:
            return self._names[token_id].encode()
        processor = self._processor
        if token_id >= processor.get_piece_size():
            return b""
        piece = processor.id_to_piece(token_id)
        if processor.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])  # "<0x0A>"
        return piece.replace(_SPACE_MARK, " ").encode()

    def _take_vocabulary(self, settings: TokenizerSettings) -> None:
        """Set the special tokens, the text that is always one token, and the ids by role."""
        processor = self._processor
        roles = dict(settings.roles)
        for role, index in (("bos_token", processor.bos_id()), ("eos_token", processor.eos_id())):
            if role not in roles and index >= 0:
                roles[role] = AddedToken(processor.id_to_piece(index))
        unknown = roles.get("unk_token") or AddedToken(processor.id_to_piece(processor.unk_id()))
        self._unknown = unknown.content
        self._unknown_length = len(processor.encode(unknown.content))

        atoms = {token.content: (token_id, token) for token_id, token in settings.added.items()}
        named = [token for token in (*roles.values(), unknown, *settings.additional) if token]
        for token in named:
            index = processor.piece_to_id(token.content)
            if processor.id_to_piece(index) == token.content:  # an unknown piece gets the id of unk
                atoms.setdefault(token.content, (index, token))
        special = {atoms[token.content][0] for token in named if token.content in atoms}
        size = processor.get_piece_size()
        self.vocab_size = max(size, 1 + max(settings.added, default=-1))
        for index in filter(processor.is_control, range(size)):
            content = processor.id_to_piece(index)
            if content not in atoms:
                atoms[content] = (index, AddedToken(content))
                special.add(index)
        self._atoms = atoms
        self._names = {token_id: token.content for token_id, token in atoms.values()}
        self.special_ids = frozenset(special)
        longest_first = sorted(filter(None, atoms), key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first))
        self._symbols: dict[str, int] | None = None
        self._pattern = re.compile(f"({names})") if names else None
        self._marked = re.compile(f"{MARK}({names})") if names else None
        self.atoms = {name: token_id for name, (token_id, _) in atoms.items()}
        self._take_ids(
            replace(settings, roles=roles),
            lambda token: atoms[token.content][0] if token and token.content in atoms else None,
            self.atoms,
        )

    def _text_edges(self, settings: TokenizerSettings, path: Path) -> tuple[list[int], list[int]]:
        """Ids put before and after a text: bos unless told otherwise, eos only if asked for."""
        add_bos = settings.add_bos_token is not False
        if add_bos and self.bos_id is None and settings.add_bos_token:
            raise UserError(f"{path}: add_bos_token is set, but there is no bos token in the vocabulary")
        if settings.add_eos_token and not self.eos_ids:
            raise UserError(f"{path}: add_eos_token is set, but there is no eos token in the vocabulary")
        before = [self.bos_id] if add_bos and self.bos_id is not None else []
        return before, list(self.eos_ids[:1]) if settings.add_eos_token else []

    @property
    def symbols(self) -> Mapping[str, int]:
        """The user-defined symbols of the model; see the base class."""
        if self._symbols is None:
            self._symbols = self._defined()
        return self._symbols

    def _defined(self) -> dict[str, int]:
        from sentencepiece import sentencepiece_model_pb2 as schema  # only needed where text is not trusted

        proto = schema.ModelProto  # pyright: ignore[reportAttributeAccessIssue]: made when it is imported
        pieces = proto.FromString(self._processor.serialized_model_proto()).pieces
        defined = proto.SentencePiece.USER_DEFINED
        return {piece.piece: index for index, piece in enumerate(pieces) if piece.type == defined}

    def encode_marked(self, text: str) -> list[int]:
        """See :meth:`Tokenizer.encode_marked`."""
        return self._ids(text, self._marked)

    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        ids = self._ids(text, self._pattern if parse_special else None)
        before, after = self._edges
        return [*before, *ids, *after] if add_special_tokens else ids

    def _ids(self, text: str, pattern: re.Pattern[str] | None) -> list[int]:
        """Ids without edges; ``pattern`` finds the special tokens, whose name is its first group."""
        if text and not self._legacy:
            text = text.replace(_SPACE_MARK, " ")
            if self._prefix_space:
                text = _SPACE_MARK + text
        ids: list[int] = []
        for part, atom in self._parts(text, pattern):
            ids.extend(self._encode_part(part) if atom is None else [atom])
        # The space put before the whole text is not wanted when a special token comes first.
        if not self._legacy and len(ids) > 1 and ids[1] in self.special_ids:
            mark = self._processor.piece_to_id(_SPACE_MARK)
            if ids[0] == mark:
                del ids[0]
        return ids

    def _encode_part(self, part: str) -> list[int]:
        if self._legacy or not part.startswith((_SPACE_MARK, " ")):
            return self._processor.encode(part)
        # SentencePiece may drop a leading space; behind other text it keeps it.
        ids = self._processor.encode(self._unknown + part)
        return ids[self._unknown_length :] if len(ids) >= self._unknown_length else ids

    def _parts(self, text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[str, int | None]]:
        """The text cut at special tokens, leftmost and longest first: ``(part, id of the special token)``."""
        matches = list(pattern.finditer(text)) if pattern else []
        start = 0
        strip_next = False
        for match in [*matches, None]:
            part = text[start : match.start() if match else len(text)]
            token_id, token = self._atoms[match[1]] if match else (None, None)
            part = part.lstrip() if strip_next else part
            part = part.rstrip() if token and token.lstrip else part
            if part:
                yield part, None
            if match is not None and token is not None:
                yield match[1], token_id
                start, strip_next = match.end(), token.rstrip


def _load(path: Path, *, dummy_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """The model in ``path``; without ``dummy_prefix`` it adds no space. Raises UserError if damaged."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        data = path.read_bytes()
        processor.LoadFromSerializedProto(data if dummy_prefix else data + _NO_DUMMY_PREFIX)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{path}: not a readable SentencePiece model ({error}); fetch the file again"
        ) from error
    return processor
