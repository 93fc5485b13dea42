"""Turns the vocabulary inside a GGUF file into the tokenizer files of a Hugging Face directory.

Keys are those of the GGUF specification: ``tokenizer.ggml.*`` and ``tokenizer.chat_template``. Model "gpt2"
is byte-level BPE and becomes ``tokenizer.json``; model "llama" is SentencePiece BPE and becomes
``tokenizer.model``.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_eagle.checkpoints.gguf import sentencepiece_model
from ms_eagle.errors import UserError
from ms_eagle.system import files, json_file

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS_WITH_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut into words before byte-pair merging, by ``tokenizer.ggml.pre``: each pattern in turn
# isolates its matches. These are the pre-tokenizers of the original models, as llama.cpp names them.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "llama-bpe": (_WORDS_WITH_DIGITS % r"\p{N}{1,3}",),
    "qwen2": (_WORDS_WITH_DIGITS % r"\p{N}",),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}
_WHOLE_WORDS_FIRST = {"llama-bpe"}  # a word that is itself a token is not built from merges
_NFC = {"qwen2"}
_ADDS_BOS = {"llama-bpe"}  # where the file does not say, by llama.cpp's defaults; all others add none
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown"}


def write_tokenizer(metadata: Mapping[str, object], directory: Path) -> None:
    """Write tokenizer.json or tokenizer.model, and tokenizer_config.json, into ``directory``.

    ``metadata`` maps GGUF keys to plain Python values (lists of str, int or float). Raises UserError for a
    missing or inconsistent key and for a vocabulary or pre-tokenizer it does not know, naming it.
    """
    model = _value(metadata, "model", str)
    tokens = _list(metadata, "tokens", str)
    kinds = _list(metadata, "token_type", int, default=[sentencepiece_model.NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise UserError(f"GGUF: {len(tokens)} tokenizer.ggml.tokens but {len(kinds)} token_type entries")
    if len(set(tokens)) != len(tokens):
        token, _ = Counter(tokens).most_common(1)[0]
        raise UserError(f"GGUF: tokenizer.ggml.tokens holds {token!r} more than once; its id is ambiguous")
    roles = {role: _role_id(metadata, name, len(tokens)) for role, name in _ROLES.items()}
    pad = metadata.get("tokenizer.ggml.padding_token_id")  # nothing needs it: one out of range is none
    roles["pad"] = pad if type(pad) is int and 0 <= pad < len(tokens) else None

    directory.mkdir(parents=True, exist_ok=True)
    if model == "gpt2":
        text = json.dumps(_byte_level(metadata, tokens, kinds), ensure_ascii=False)
        files.write_text(directory / "tokenizer.json", text)
    elif model == "llama":
        files.write_bytes(directory / "tokenizer.model", _sentencepiece(metadata, tokens, kinds, roles))
    else:
        raise UserError(f"GGUF: tokenizer.ggml.model {model!r} is not supported; expected 'gpt2' or 'llama'")
    json_file.write_object(
        directory / "tokenizer_config.json", _config(metadata, model, tokens, kinds, roles)
    )


def _byte_level(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> dict[str, object]:
    """The content of tokenizer.json for model "gpt2"."""
    pre = _pre(metadata)
    if pre not in _SPLITS:
        known = ", ".join(sorted({*_SPLITS, *_ALIASES}))
        raise UserError(f"GGUF: tokenizer.ggml.pre {pre!r} is not supported; expected one of {known}")
    merges = [merge.split(" ") for merge in _list(metadata, "merges", str)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise UserError(f"GGUF: tokenizer.ggml.merges holds {' '.join(merge)!r}, not a pair of tokens")
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in _SPLITS[pre]
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, **flags} for index, flags in _added_tokens(tokens, kinds).items()],
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _pre(metadata: Mapping[str, object]) -> str:
    name = _value(metadata, "pre", str, default="default")
    return _ALIASES.get(name, name)


def _sentencepiece(
    metadata: Mapping[str, object], tokens: list[str], kinds: list[int], roles: Mapping[str, int | None]
) -> bytes:
    """The content of tokenizer.model for model "llama"."""
    scores = _list(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise UserError(f"GGUF: {len(tokens)} tokenizer.ggml.tokens but {len(scores)} scores")
    unknown = (
        kinds.index(sentencepiece_model.UNKNOWN) if sentencepiece_model.UNKNOWN in kinds else roles["unk"]
    )
    if unknown is None:
        raise UserError("GGUF: no token of type 'unknown' and no unknown_token_id; expected one, as in Llama")
    entries = zip(tokens, scores, kinds, strict=True)
    return sentencepiece_model.serialize(
        [sentencepiece_model.Piece(*entry) for entry in entries],
        unk_id=unknown,
        bos_id=roles["bos"],
        eos_id=roles["eos"],
        pad_id=roles["pad"],
        add_dummy_prefix=_value(metadata, "add_space_prefix", bool, default=True),
        remove_extra_whitespaces=_value(metadata, "remove_extra_whitespaces", bool, default=False),
        normalization_map=bytes(_list(metadata, "precompiled_charsmap", int, default=[])),
    )


def _config(
    metadata: Mapping[str, object],
    model: str,
    tokens: list[str],
    kinds: list[int],
    roles: Mapping[str, int | None],
) -> dict[str, object]:
    """The content of tokenizer_config.json."""
    config: dict[str, object] = {
        f"{role}_token": None if index is None else tokens[index] for role, index in roles.items()
    }
    # llama.cpp's own defaults where the file says nothing: SentencePiece models begin with bos.
    adds_bos = model == "llama" or (_pre(metadata) in _ADDS_BOS and roles["bos"] is not None)
    config["add_bos_token"] = _value(metadata, "add_bos_token", bool, default=adds_bos)
    config["add_eos_token"] = _value(metadata, "add_eos_token", bool, default=False)
    config["added_tokens_decoder"] = {
        str(index): flags for index, flags in _added_tokens(tokens, kinds).items()
    }
    if model == "llama":
        config["tokenizer_class"] = "LlamaTokenizer"
        config["legacy"] = True  # the leading-space rule of llama.cpp, for which GGUF files are made
        control = [
            token for token, kind in zip(tokens, kinds, strict=True) if kind == sentencepiece_model.CONTROL
        ]
        config["additional_special_tokens"] = control  # so that decoded text is without them
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    elif template is not None:
        raise UserError(f"GGUF: tokenizer.chat_template has type {type(template).__name__}; expected text")
    return config


def _added_tokens(tokens: list[str], kinds: list[int]) -> dict[int, dict[str, object]]:
    """Control and user-defined tokens by id, with their flags as Hugging Face writes them."""
    special = {sentencepiece_model.CONTROL: True, sentencepiece_model.UNKNOWN: True}
    special[sentencepiece_model.USER_DEFINED] = False
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        index: {"content": token, **flags, "special": special[kind]}
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in special
    }


def _role_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    """``tokenizer.ggml.NAME_token_id`` checked against the vocabulary; None when absent."""
    index = _value(metadata, f"{name}_token_id", int, default=None)
    if index is not None and not 0 <= index < count:
        raise UserError(f"GGUF: tokenizer.ggml.{name}_token_id is {index}; the vocabulary has {count} tokens")
    return index


_REQUIRED = object()


def _value(metadata: Mapping[str, object], name: str, kind: type, default: object = _REQUIRED) -> Any:
    """``tokenizer.ggml.NAME`` checked to be ``kind``, or ``default`` when absent."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        if default is _REQUIRED:
            raise UserError(f"GGUF: no {key}; this file carries no usable tokenizer")
        return default
    value = metadata[key]
    if not isinstance(value, kind):
        raise UserError(f"GGUF: {key} has type {type(value).__name__}; expected {kind.__name__}")
    return value


def _list(metadata: Mapping[str, object], name: str, kind: type, default: list | None = None) -> list:
    """``tokenizer.ggml.NAME`` as a list whose items are ``kind``."""
    value = _value(metadata, name, list, _REQUIRED if default is None else default)
    if not all(isinstance(item, kind) for item in value):
        raise UserError(f"GGUF: tokenizer.ggml.{name} must be a list of {kind.__name__}")
    return value
