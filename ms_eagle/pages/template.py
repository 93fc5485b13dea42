"""Pages from templates: HTML that needs nothing else, no network and no other file."""

import json
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ms_eagle.pages.markup import printable


def render(name: str, **values: object) -> str:
    """The template ``templates/<name>`` with its values; every text in them is escaped.

    Raises:
        jinja2.UndefinedError: the template wants a value that is not given.
    """
    return _ENVIRONMENT.get_template(name).render(values)


def asset(name: str) -> Markup:
    """A style sheet or script of this package, as it is."""
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


_ENVIRONMENT = Environment(
    loader=PackageLoader("ms_eagle.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=printable,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["asset"] = asset
_ENVIRONMENT.filters["pretty"] = _pretty
