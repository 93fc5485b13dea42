"""The schema in words."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from ms_eagle.config import schema


class Inner(BaseModel):
    whole: int = Field(1, ge=1)
    ranged: int = Field(1, ge=1, le=9)
    number: float = Field(1.0, gt=0)
    capped: float = Field(1.0, gt=0, le=1)
    free: float = 0.0
    flag: bool = False
    text: str = Field("x", min_length=1)
    maybe: str | None = None
    maybe_whole: int | None = Field(None, ge=2)
    pick: Literal["a", "b", "c"] = "a"
    pick_or_not: Literal["a", "b"] | None = None
    texts: list[Annotated[str, Field(min_length=1)]] = []
    numbers: list[Annotated[int, Field(ge=0)]] | None = None


class Middle(BaseModel):
    inner: Inner = Inner()
    own: int = 0


class Outer(BaseModel):
    middle: Middle = Middle()
    top: int = 0


def test_sections_and_options_are_found_at_any_depth():
    assert [path for path, _ in schema.sections(Outer)] == [("middle",), ("middle", "inner")]
    names = list(schema.options(Outer))
    assert names[:3] == ["top", "middle.own", "middle.inner.whole"]
    assert "middle" not in names
    assert "middle.inner" not in names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("whole", "a whole number of at least 1"),
        ("ranged", "a whole number from 1 to 9"),
        ("number", "a number above 0"),
        ("capped", "a number above 0 and at most 1"),
        ("free", "a number"),
        ("flag", "true or false"),
        ("text", "non-empty text"),
        ("maybe", "text, or null"),
        ("maybe_whole", "a whole number of at least 2, or null"),
        ("pick", "a, b or c"),
        ("pick_or_not", "a, b or null"),
        ("texts", "a list of non-empty texts"),
        ("numbers", "a list of whole numbers of at least 0, or null"),
    ],
)
def test_expected(name, words):
    assert schema.expected(Inner.model_fields[name]) == words


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("middle.ownn", "middle.own"),
        ("midle", "middle"),
        ("whole", "middle.inner.whole"),
        ("middle.inner.pick_or", "middle.inner.pick_or_not"),
        ("middle.inner.middle", "middle"),
    ],
)
def test_nearest(name, found):
    candidates = ["middle", "middle.inner", *schema.options(Outer)]
    assert schema.nearest(name, candidates) == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (2.5, "2.5"),
        (10**80, "1" + "0" * 56 + "..."),
        ("a\nb", r"the text 'a\nb'"),
        ("", "an empty text"),
        ([], "a list"),
        ({}, "a mapping"),
    ],
)
def test_describe(value, words):
    assert schema.describe(value) == words
