"""What the small JSON files of a Hugging Face directory say about its tokenizer.

Read are ``tokenizer_config.json``, ``special_tokens_map.json``, ``added_tokens.json``,
``generation_config.json`` and ``config.json``; each of them may be absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ms_eagle.errors import UserError
from ms_eagle.system import json_file

_T = TypeVar("_T")

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class AddedToken:
    """A string that is always one token.

    ``special`` tokens are left out of decoded text; ``lstrip`` and ``rstrip`` tokens swallow the white space
    on that side.
    """

    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class TokenizerSettings:
    """The merged settings. ``None`` means that no file says anything."""

    tokenizer_class: str | None
    roles: Mapping[str, AddedToken | None]
    """``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``: only the roles that a file states."""
    additional: tuple[AddedToken, ...]
    """``additional_special_tokens``."""
    added: Mapping[int, AddedToken]
    """``added_tokens_decoder``, or ``added_tokens.json``, by token id."""
    add_bos_token: bool | None
    add_eos_token: bool | None
    add_prefix_space: bool | None
    legacy: bool | None
    generation_eos_ids: tuple[int, ...]
    """``eos_token_id`` of generation_config.json."""
    model_ids: Mapping[str, tuple[int, ...]]
    """``bos``, ``eos`` and ``pad`` ids of config.json (of generation_config.json where it alone has them)."""

    def template_variables(self) -> dict[str, object]:
        """The special tokens that a chat template may name, as strings, for example ``bos_token``."""
        names: dict[str, object] = {role: token.content for role, token in self.roles.items() if token}
        if self.additional:
            names["additional_special_tokens"] = [token.content for token in self.additional]
        return names


def read_settings(directory: Path) -> TokenizerSettings:
    """Read the settings of a model directory. Raises UserError for a malformed file, naming it."""
    config = optional_object(directory / "tokenizer_config.json")
    token_map = optional_object(directory / "special_tokens_map.json")
    generation = optional_object(directory / "generation_config.json")
    model = optional_object(directory / "config.json")
    where = directory / "tokenizer_config.json"

    roles: dict[str, AddedToken | None] = {}
    for role in ROLES:
        for source in (config, token_map):
            if role in source:
                roles[role] = _token(source[role], role, where)
                break
    additional = config.get("additional_special_tokens") or token_map.get("additional_special_tokens") or []
    if not isinstance(additional, list):
        raise UserError(f"{where}: additional_special_tokens is {additional!r}; expected a list of tokens")
    extra = tuple(token for item in additional if (token := _token(item, "additional_special_tokens", where)))

    named = {token.content for token in (*roles.values(), *extra) if token}
    added = _added_tokens(directory, config, named)

    ids: dict[str, tuple[int, ...]] = {}
    for name in ("bos", "eos", "pad"):
        key = f"{name}_token_id"
        ids[name] = _ids(model, key, directory / "config.json") or _ids(
            generation, key, directory / "generation_config.json"
        )
    return TokenizerSettings(
        tokenizer_class=_typed(config, "tokenizer_class", str, where),
        roles=roles,
        additional=extra,
        added=added,
        add_bos_token=_typed(config, "add_bos_token", bool, where),
        add_eos_token=_typed(config, "add_eos_token", bool, where),
        add_prefix_space=_typed(config, "add_prefix_space", bool, where),
        legacy=_typed(config, "legacy", bool, where),
        generation_eos_ids=_ids(generation, "eos_token_id", directory / "generation_config.json"),
        model_ids=ids,
    )


def optional_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, empty when there is no such file. Raises UserError if malformed."""
    return json_file.read_object(path) if path.is_file() else {}


def _added_tokens(directory: Path, config: Mapping[str, Any], named: set[str]) -> dict[int, AddedToken]:
    """``added_tokens_decoder`` of tokenizer_config.json, else the older added_tokens.json, by id."""
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        path = directory / "added_tokens.json"
        pairs = optional_object(path)
        if not all(isinstance(value, int) for value in pairs.values()):
            raise UserError(f"{path}: expected a map from token text to token id")
        return {int(value): AddedToken(text, special=text in named) for text, value in pairs.items()}
    path = directory / "tokenizer_config.json"
    if not isinstance(decoder, dict) or not all(key.isascii() and key.isdigit() for key in decoder):
        raise UserError(f"{path}: added_tokens_decoder must be a map from token id to token")
    tokens = {int(key): _token(value, "added_tokens_decoder", path) for key, value in decoder.items()}
    return {key: token for key, token in tokens.items() if token}


def _token(value: object, key: str, path: Path) -> AddedToken | None:
    """A token written as a string, as an object with ``content``, or as null."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return AddedToken(value)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        if value.get("single_word"):
            raise UserError(f"{path}: {key} has single_word tokens, which are not supported")
        return AddedToken(
            value["content"],
            special=bool(value.get("special", True)),
            lstrip=bool(value.get("lstrip", False)),
            rstrip=bool(value.get("rstrip", False)),
        )
    raise UserError(f"{path}: {key} holds {value!r}; expected a string or an object with 'content'")


def _ids(source: Mapping[str, Any], key: str, path: Path) -> tuple[int, ...]:
    """One id or a list of ids as a tuple; empty when absent, null or the -1 that some exporters write."""
    value = source.get(key)
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise UserError(f"{path}: {key} is {value!r}; expected a token id or a list of token ids")
    return tuple(item for item in items if item >= 0)


def _typed(source: Mapping[str, Any], key: str, kind: type[_T], path: Path) -> _T | None:
    """``source[key]`` checked to be ``kind`` or null."""
    value = source.get(key)
    if value is not None and not isinstance(value, kind):
        raise UserError(f"{path}: {key} is {value!r}; expected {kind.__name__}")
    return value
