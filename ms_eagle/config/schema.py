"""A pydantic schema in words: its keys, what each accepts, and one readable line for what does not fit."""

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

Keys = tuple[str, ...]


class Section(BaseModel):
    """A mapping of the YAML file: only the declared keys, no conversions, immutable once read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def sections(schema: type[BaseModel], prefix: Keys = ()) -> Iterator[tuple[Keys, type[BaseModel]]]:
    """Every nested model of ``schema`` with its path of keys, parents before children."""
    for name, info in schema.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield (*prefix, name), inner
            yield from sections(inner, (*prefix, name))


def options(schema: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every option that holds a value, by its dotted key such as ``model.source``, in the schema's order."""
    nested = dict(sections(schema))
    return {
        ".".join((*path, name)): info
        for path, section in [((), schema), *nested.items()]
        for name, info in section.model_fields.items()
        if (*path, name) not in nested
    }


def nearest(name: str, candidates: list[str]) -> str:
    """The dotted candidate whose last part is spelled most like that of ``name``; siblings are preferred."""
    parent, _, last = name.rpartition(".")

    def likeness(candidate: str) -> float:
        place, _, word = candidate.rpartition(".")
        return difflib.SequenceMatcher(None, last, word).ratio() + (0.15 if place == parent else 0)

    return max(candidates, key=likeness)


def expected(info: FieldInfo) -> str:
    """What a field accepts, in words: ``a whole number of at least 1, or null``."""
    return _expected(info.annotation, info.metadata)


def _expected(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        extra = [m for a in arguments[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _expected(arguments[0], [*metadata, *extra])
    if origin in (types.UnionType, typing.Union) and type(None) not in arguments:
        return " or ".join(_expected(argument, metadata) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [a for a in arguments if a is not type(None)]
        words = _expected(inner, metadata)
        return f"{words.replace(' or ', ', ')} or null" if _is_literal(inner) else f"{words}, or null"
    if origin is Literal:
        return _choice([str(name) for name in arguments])
    if origin is list:
        return f"a list of {_plural(_expected(arguments[0], []))}"
    if annotation is str:
        return "non-empty text" if any(isinstance(m, MinLen) for m in metadata) else "text"
    if annotation is bool:
        return "true or false"
    return f"a {'whole ' if annotation is int else ''}number{_range(metadata)}"


def _plural(words: str) -> str:
    """``a whole number of at least 0`` for several: ``whole numbers of at least 0``."""
    if " or " in words and "number" in words:
        return " or ".join(map(_plural, words.split(" or ")))
    words = words.removeprefix("a ")
    return words.replace("number", "numbers", 1) if "number" in words else f"{words}s"


def _is_literal(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Literal


def _choice(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _range(metadata: list[Any]) -> str:
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    above = next((m.gt for m in metadata if isinstance(m, Gt)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    below = next((m.lt for m in metadata if isinstance(m, Lt)), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    limits = (
        ("of at least", low),
        ("above", above),
        ("at most", high),
        ("below", below),
    )
    told = " and ".join(f"{words} {limit}" for words, limit in limits if limit is not None)
    return told and f" {told}"


def describe(value: Any) -> str:
    """A short rendering of a value that was found, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _shortened(str(value))
    if isinstance(value, str):
        return f"the text {_shortened(value)!r}" if value else "an empty text"
    return "a list" if isinstance(value, list) else "a mapping"


def _shortened(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def explain(schema: type[BaseModel], error: ValidationError, origins: dict[Keys, str], file: str) -> str:
    """One line for a failed validation: the first problem in full, and how many others there are.

    Args:
        schema: the model that refused the data.
        error: unknown keys come first among its problems, for they are often why another is missing.
        origins: where each key was given, as ``file:line`` or ``--set``, in the order given.
        file: stands in for a key that was given nowhere.
    """
    order = list(origins)
    lines = set()  # each kind that a value might be of and is not makes the same line
    for problem in error.errors(include_url=False):
        path = tuple(str(part) for part in problem["loc"])
        given = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in origins), None)
        rank, text = _explain_one(schema, problem, path)
        place = -1 if given is None else order.index(given)
        lines.add((rank, place, f"{file if given is None else origins[given]}: {text}"))
    first = min(lines)[2]
    others = len(lines) - 1
    return f"{first} (and {others} more {'error' if others == 1 else 'errors'})" if others else first


def _explain_one(schema: type[BaseModel], problem: Mapping[str, Any], path: Keys) -> tuple[int, str]:
    """Rank and text of one problem; lower ranks are told first."""
    nested, fields = dict(sections(schema)), options(schema)
    names = [".".join(p) for p in nested] + list(fields)
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return 0, f"unknown key {key} (nearest valid key: {nearest(key, names)})"
    if path in nested:
        example = next(name for name in fields if name.startswith(f"{key}."))
        if problem["type"] == "missing":
            return 2, f"the section {key} is missing; expected keys such as {example}"
        return 1, f"{key} is {describe(problem['input'])}; expected keys below it, such as {example}"
    option = next(".".join(path[:n]) for n in range(len(path), 0, -1) if ".".join(path[:n]) in fields)
    accepted = expected(fields[option])
    if problem["type"] == "missing":
        return 2, f"{key} is missing; expected {accepted}"
    if problem["type"] == "finite_number":
        accepted = accepted.replace("a number", "a finite number", 1)
    if accepted.removeprefix("non-empty ").startswith("text") and not isinstance(
        problem["input"], str | types.NoneType
    ):
        accepted += " (put it in quotes)"
    inside = path[len(option.split(".")) :]  # of a list: the item, and which of several kinds did not fit
    item = f", item {int(inside[0]) + 1}," if inside else ""
    return 1, f"{option}{item} is {describe(problem['input'])}; expected {accepted}"
