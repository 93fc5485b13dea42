"""YAML read strictly: the YAML 1.2 core scalars, no duplicate keys, no aliases, every key's line known.

PyYAML's own ``safe_load`` follows YAML 1.1, where ``off`` is a boolean, ``1e-5`` is text, ``010`` is eight
and a repeated key silently wins. Configuration cannot afford any of these.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from ms_eagle.errors import UserError

_MAX_DEPTH = 16
_MAX_DIGITS = 1000  # of an integer: Python prints no more than 4300 decimal ones, whatever base it read


class _TooDeep(Exception):
    """Brackets within brackets; the argument is the line."""


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the core schema of YAML 1.2 and without anchors' aliases."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 (PyYAML reads this class attribute)

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not supported", mark)
        if self.depth > _MAX_DEPTH:  # here and not later: composing recurses, as deep as the text says
            raise _TooDeep(mark.line + 1)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_SCALARS = {
    "tag:yaml.org,2002:null": (r"|~|null|Null|NULL", lambda text: None),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "tag:yaml.org,2002:int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        _integer,
    ),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
}


def _scalar(convert: Any) -> Any:
    return lambda loader, node: convert(loader.construct_scalar(node))


for _tag, (_pattern, _convert) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), None)
    _Loader.add_constructor(_tag, _scalar(_convert))


@dataclass(frozen=True)
class Document:
    """A parsed YAML document.

    ``value`` holds plain dicts, lists, strings, numbers, booleans and None; ``lines`` maps a key's path,
    such as ``("model", "source")``, to its 1-based line.
    """

    value: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)


def parse(text: str, origin: str) -> Document:
    """Parse one YAML document; ``origin`` (a file name or an option) starts every error message.

    Raises:
        UserError: the text is not valid YAML, repeats a key, or uses aliases, tags or non-text keys.
    """
    loader = None
    lines: dict[tuple[str, ...], int] = {}
    try:
        loader = _Loader(text)  # the constructor already refuses control characters
        node = loader.get_single_node()
        return Document(None if node is None else _build(loader, node, (), lines, origin), lines)
    except _TooDeep as error:
        raise UserError(f"{origin}:{error}: nested more than {_MAX_DEPTH} levels deep") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise UserError(f"{origin}:{line}: the character U+{code:04X} is not allowed") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}:{mark.line + 1}" if mark else origin
        problem = error.problem or "it cannot be parsed"
        if "'\\t'" in problem:
            problem = "a tab is used for indentation; use spaces"
        raise UserError(f"{where}: not valid YAML: {problem}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _build(
    loader: _Loader, node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int], origin: str
) -> Any:
    """Python value of ``node``; records the line of each key below it and refuses duplicates."""
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_build(loader, item, (*path, str(i)), lines, origin) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, f"the tag {node.tag} is not supported", node.start_mark
            )
        try:
            return loader.construct_object(node)
        except ValueError as error:  # `!!int word`, or an integer of too many digits
            raise yaml.constructor.ConstructorError(None, None, "not a number", node.start_mark) from error
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag != "tag:yaml.org,2002:str":
            raise UserError(f"{origin}:{line}: the key {_shown(key_node)} is not text; put it in quotes")
        key = key_node.value
        here = (*path, key)
        if key in mapping:
            first = lines[here]
            raise UserError(
                f"{origin}:{line}: the key {'.'.join(here)} is given twice (first in line {first})"
            )
        lines[here] = line
        mapping[key] = _build(loader, value_node, here, lines, origin)
    return mapping


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "of this mapping"
