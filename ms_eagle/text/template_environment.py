"""The Jinja environment that chat templates are written for.

Templates come with model files, so they run sandboxed: no attribute access to Python internals, no changes
to the objects passed in. The whitespace settings, filters and functions are those that Hugging Face documents
for chat templates.
"""

import json
import math
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LARGEST, _LONGEST, _MOST_POWER = 10**18, 10**7, 1000  # number; repeated text, items; base and exponent


class Sandbox(ImmutableSandboxedEnvironment):
    """No product and no power takes long or much memory: one call of native code cannot be cut short."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See ``SandboxedEnvironment``.

        Raises:
            jinja2.TemplateError: an operand is out of bounds.
        """
        numbers = [abs(each) for each in (left, right) if isinstance(each, int | float)]
        lengths = [len(each) for each in (left, right) if hasattr(each, "__len__")]
        largest = _LARGEST if operator == "*" else _MOST_POWER
        if max(numbers, default=0) > largest or (lengths and math.prod([*lengths, *numbers]) > _LONGEST):
            raise jinja2.TemplateError(f"what is around {operator} is too large")
        return super().call_binop(context, operator, left, right)


class GenerationBlock(Extension):
    """``{% generation %} ... {% endgeneration %}``: marks assistant text for training; here it renders as
    it is.
    """

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> Sandbox:
    """A fresh environment: trimmed blocks, loop controls, ``tojson``, ``raise_exception``,
    ``strftime_now``.
    """
    sandbox = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    return sandbox


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
