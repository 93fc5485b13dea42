"""Elements of HTML and SVG whose text is escaped."""

import re

import markupsafe
from markupsafe import Markup

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(value: object) -> object:
    """A string with U+FFFD for what HTML or UTF-8 cannot hold; any other value, markup too, as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub("�", value)
    return value


def escape(value: object) -> Markup:
    """Text for content and attributes; markup stays as it is."""
    return markupsafe.escape(printable(value))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """``<tag ...>content</tag>``; content that is not markup is text.

    Numbers are written with one decimal. ``_`` in a name stands for ``-``, at its end for nothing.
    """
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_shown(value)}"' for name, value in attributes.items()
    )
    inner = "".join(map(escape, content))
    return Markup(f"<{tag}{names}>{inner}</{tag}>" if inner else f"<{tag}{names}/>")


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(value)
