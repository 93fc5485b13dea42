"""Chat templates: messages in, prompt text or prompt ids out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import jinja2
from jinja2 import meta

from ms_eagle.errors import UserError
from ms_eagle.system import files, home
from ms_eagle.system.time_limit import time_limit
from ms_eagle.text.plain import SpecialTokens, encode_messages, encode_rendered
from ms_eagle.text.settings import optional_object, read_settings
from ms_eagle.text.template_environment import environment
from ms_eagle.text.tokenizer import Tokenizer

Thinking = Literal["auto", "on", "off"]
Message = Mapping[str, object]
"""``{"role": "system" | "user" | "assistant" | ..., "content": text}``."""

# openPangu-Embedded's dialogue format: [unused9] and [unused10] enclose a turn, a conversation starts with
# a system turn even if it is empty. Turns go in verbatim: earlier answers keep their
# [unused16]thinking[unused17] part, as with the template that openPangu publishes; who wants them gone
# passes messages without them.
OPENPANGU = """\
{%- set names = dict(system="系统", user="用户", assistant="助手", tool="工具", function="方法") -%}
{%- set opening = [] if messages[0].role == "system" else [{"role": "system", "content": ""}] -%}
{%- for turn in opening + messages -%}
    {%- if turn.role not in names -%}
        {{- raise_exception("role '" ~ turn.role ~ "' is unknown; expected one of " ~ names | join(", ")) -}}
    {%- endif -%}
    {{- "[unused9]" ~ names[turn.role] ~ "：" ~ turn.content ~ "[unused10]" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "[unused9]助手：" -}}
{%- endif -%}
"""
_BUILT_IN = {"openpangu": OPENPANGU}
_PANGU_SWITCHES = {"on": "", "off": " /no_think", "auto": " /auto_think"}
_ENABLE_THINKING = {"on": True, "off": False}
_SECONDS = 10.0  # for one rendering, which takes milliseconds
# What a template can raise besides Jinja's own errors: ordinary Python errors of the operations it writes
# down.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template. ``origin`` says where it came from; ``source`` is its Jinja text.

    Thinking is switched in the way of the template's family: Qwen3's variable ``enable_thinking``, or
    openPangu's suffix on user turns (`` /no_think``, `` /auto_think``, nothing for slow thinking). The
    suffix goes on every
    user turn that has none, not only on the newest: that is how those turns were sent, and it keeps the
    prompt of a conversation a prefix of the next one.

    Raises UserError if the template does not parse.
    """

    def __init__(self, source: str, origin: str, variables: Mapping[str, object] | None = None) -> None:
        self.source = source = source.removeprefix("\ufeff")  # a file's byte order mark, kept by exporters
        self.origin = origin
        self._variables = dict(variables or {})
        sandbox = environment()
        try:
            self._template = sandbox.from_string(source)
            free = meta.find_undeclared_variables(sandbox.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"chat template {origin}: line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, RecursionError) as error:
            raise UserError(f"chat template {origin}: {error}") from error
        self._has_variable = "enable_thinking" in free
        self._has_suffix = "[unused9]" in source and "[unused10]" in source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        thinking: Thinking | None = None,
    ) -> str:
        """The prompt text of ``messages``.

        With ``add_generation_prompt`` it ends where the assistant's answer begins. ``thinking=None`` leaves
        the choice to the template. Raises UserError for no messages, for a message without text, for a
        thinking switch that the template does not have, and for whatever the template itself refuses.
        """
        turns, switches = self._turns(messages, thinking)
        return self._text(turns, {**switches, "add_generation_prompt": add_generation_prompt})

    def _turns(
        self, messages: Sequence[Message], thinking: Thinking | None
    ) -> tuple[list[dict[str, object]], dict[str, object]]:
        """Copies of the messages, ``thinking`` applied to them, and the variables that it needs."""
        if not messages:
            raise UserError("chat: no messages; expected at least one")
        turns = [dict(message) for message in messages]
        for index, turn in enumerate(turns):
            for key in ("role", "content"):
                if not isinstance(turn.get(key), str):
                    raise UserError(f"chat: message {index} has {key} {turn.get(key)!r}; expected text")
        return turns, self._switch(turns, thinking)

    def _text(self, turns: Sequence[Message], switches: Mapping[str, object]) -> str:
        variables = {"tools": None, "documents": None, **self._variables, **switches}
        try:
            with time_limit(_SECONDS):  # a loop over a loop over a loop never ends
                return self._template.render(messages=turns, **variables)
        except (TimeoutError, MemoryError, *_TEMPLATE_FAULTS) as error:
            raise UserError(f"chat template {self.origin}: {error}") from error

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        thinking: Thinking | None = None,
        special_tokens: SpecialTokens = "control",
    ) -> list[int]:
        """The prompt ids of ``messages``.

        Special tokens written by the template become their ids, and so do those that a message's text
        spells out, unless ``special_tokens`` is "text". The tokenizer's own beginning-of-text token is added
        (if it adds one at all) unless the template wrote it.

        Raises:
            UserError: see ``render`` and ``plain.encode_messages``.
        """
        turns, switches = self._turns(messages, thinking)
        switches["add_generation_prompt"] = add_generation_prompt
        if special_tokens == "control":
            return encode_rendered(self._text(turns, switches), tokenizer)
        return encode_messages(
            lambda contents: self._text(
                [{**turn, "content": content} for turn, content in zip(turns, contents, strict=True)],
                switches,
            ),
            [str(turn["content"]) for turn in turns],
            [str(turn["role"]) for turn in turns],
            tokenizer,
        )

    def _switch(self, turns: list[dict[str, object]], thinking: Thinking | None) -> dict[str, object]:
        """Apply ``thinking``: extra template variables, or suffixes put on the user turns in place."""
        if thinking is None:
            return {}
        if thinking not in _PANGU_SWITCHES:
            raise UserError(f"chat: thinking is {thinking!r}; expected 'auto', 'on' or 'off'")
        if self._has_variable:
            if thinking not in _ENABLE_THINKING:
                raise UserError(f"chat template {self.origin} has no thinking 'auto'; expected 'on' or 'off'")
            return {"enable_thinking": _ENABLE_THINKING[thinking]}
        if not self._has_suffix:
            raise UserError(f"chat template {self.origin} has no thinking switch; leave thinking out")
        suffixes = tuple(filter(None, _PANGU_SWITCHES.values()))
        for turn in turns:
            if turn["role"] == "user" and not str(turn["content"]).endswith(suffixes):
                turn["content"] = f"{turn['content']}{_PANGU_SWITCHES[thinking]}"
        return {}


def load_template(directory: Path, name_or_path: str | None = None) -> ChatTemplate:
    """The chat template of a model directory.

    Without ``name_or_path``: chat_template.jinja, else ``chat_template`` of tokenizer_config.json (in a
    list of named templates, the one called "default"), else the built-in one of openPangu if that is the
    model. Otherwise ``name_or_path`` is "openpangu" (built in), the name of one of the directory's
    templates, or a file.

    Raises UserError when there is no such template, saying which there are.
    """
    directory = Path(directory)
    settings = read_settings(directory)
    variables = settings.template_variables()
    own = _own_templates(directory)
    if name_or_path is None:
        if "default" in own:
            return ChatTemplate(own["default"], f"of {directory}", variables)
        if settings.tokenizer_class == "PanguTokenizer":
            return ChatTemplate(OPENPANGU, "openpangu (built in)", variables)
        named = f" (it has the named ones {', '.join(sorted(own))})" if own else ""
        raise UserError(
            f"{directory}: the model has no default chat template{named}; set model.chat_template to "
            f"a Jinja file, a name or {', '.join(_BUILT_IN)}, or ask for raw completion"
        )
    if name_or_path in _BUILT_IN:
        return ChatTemplate(_BUILT_IN[name_or_path], f"{name_or_path} (built in)", variables)
    if name_or_path in own:
        return ChatTemplate(own[name_or_path], f"{name_or_path!r} of {directory}", variables)
    path = home.expanded(name_or_path)
    if not path.is_file():
        known = ", ".join((*_BUILT_IN, *sorted(own)))
        raise UserError(f"model.chat_template is {name_or_path!r}: no such file, and not one of {known}")
    return ChatTemplate(_read_text(path), str(path), variables)


def _own_templates(directory: Path) -> dict[str, str]:
    """The directory's templates by name; the unnamed one is "default"."""
    path = directory / "tokenizer_config.json"
    value = optional_object(path).get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            named = entry if isinstance(entry, dict) else {}
            name, template = named.get("name"), named.get("template")
            if not isinstance(name, str) or not isinstance(template, str):
                raise UserError(
                    f"{path}: chat_template must be text or a list of objects with name and template"
                )
            templates[name] = template
    elif value is not None:
        raise UserError(f"{path}: chat_template has type {type(value).__name__}; expected text or a list")
    for file in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read_text(file)
    if (file := directory / "chat_template.jinja").is_file():
        templates["default"] = _read_text(file)
    return templates


def _read_text(path: Path) -> str:
    try:
        return files.text_of(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as UTF-8 text ({error})") from error
