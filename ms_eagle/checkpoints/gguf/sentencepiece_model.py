"""Writes a SentencePiece model file from a list of pieces.

The file is a protocol buffer, ``sentencepiece.ModelProto``; only the few fields that inference reads are
written, with the wire types they need (varint, length-delimited, and the 32-bit float of a score). Field
numbers are those of SentencePiece's published ``sentencepiece_model.proto``. The module that protoc generates
from it is shipped with sentencepiece, but wants the very protobuf release that it was generated with, and
imported before MindSpore it ends the process with an abort.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of a piece; GGUF's ``tokenizer.ggml.token_type`` uses the same numbers."""

_BPE = 2


@dataclass(frozen=True)
class Piece:
    """One vocabulary entry; its id is its place in the list. ``kind`` is one of the constants above."""

    text: str
    score: float
    kind: int


def serialize(
    pieces: Sequence[Piece],
    *,
    unk_id: int,
    bos_id: int | None,
    eos_id: int | None,
    pad_id: int | None,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    normalization_map: bytes = b"",
) -> bytes:
    """The bytes of a BPE ``tokenizer.model``. ``normalization_map`` is a compiled character map, empty for
    none.
    """
    body = b"".join(
        _message(
            1,
            _text(1, piece.text) + _tag(2, 5) + struct.pack("<f", piece.score) + _integer(3, piece.kind),
        )
        for piece in pieces
    )
    trainer = b"".join(
        (
            _integer(3, _BPE),
            _integer(4, len(pieces)),
            _integer(35, int(any(piece.kind == BYTE for piece in pieces))),
            _integer(40, unk_id),
            *(
                _integer(field, -1 if value is None else value)
                for field, value in _roles(bos_id, eos_id, pad_id)
            ),
            _text(45, pieces[unk_id].text),
            *(_text(field, pieces[value].text) for field, value in _names(bos_id, eos_id, pad_id)),
        )
    )
    normalizer = b"".join(
        (
            _text(1, "identity" if not normalization_map else "user_defined"),
            _message(2, normalization_map) if normalization_map else b"",
            _integer(3, int(add_dummy_prefix)),
            _integer(4, int(remove_extra_whitespaces)),
            _integer(5, 1),  # spaces are escaped as U+2581
        )
    )
    return body + _message(2, trainer) + _message(3, normalizer)


def _roles(bos: int | None, eos: int | None, pad: int | None) -> list[tuple[int, int | None]]:
    return [(41, bos), (42, eos), (43, pad)]


def _names(bos: int | None, eos: int | None, pad: int | None) -> list[tuple[int, int]]:
    return [(field + 5, value) for field, value in _roles(bos, eos, pad) if value is not None]


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative int32 is written as 64-bit two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _integer(field: int, value: int) -> bytes:
    return _tag(field, 0) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
