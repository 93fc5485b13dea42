"""A saved model: everything it needs in one directory, in the formats that it was read from."""

import json
import shutil
from pathlib import Path

import mindformers
from mindformers import GenerationConfig
from transformers import AutoTokenizer

from ms_eagle.drafters.registry import kind_of
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.mindformers.config import EagleConfig
from ms_eagle.system import files
from ms_eagle.system.json_file import read_object, write_object
from ms_eagle.system.progress import Progress

TEACHER, DRAFTER = "teacher", "drafter"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def save(directory: Path, config: EagleConfig, engine: Engine, generation: GenerationConfig) -> None:
    """Write config.json, generation_config.json, the tokenizer, and copies of teacher and head.

    ``teacher/`` and ``drafter/`` hold the files as they are; config.json names them relative to itself, so
    that the directory may be moved.

    Raises:
        UserError: the directory is a file, holds what would be read, or cannot be written.
    """
    ours = config.engine_config()
    target = directory.resolve()
    if target.is_file():
        raise UserError(f"save_pretrained: {directory} is a file; expected a directory.")
    if target == engine.directory.resolve():
        raise UserError(f"save_pretrained: {directory} holds the teacher itself; name another directory.")
    eagle = {name: dict(section) for name, section in config.eagle.items()}
    try:
        _copy(engine.directory, target / TEACHER)
        kind = kind_of(ours)
        if kind.locate is not None:
            _copy(kind.locate(ours, Progress(quiet=True)), target / DRAFTER)
            eagle["drafter"]["source"] = DRAFTER
        for name in _TOKENIZER:
            if (engine.directory / name).is_file():
                shutil.copyfile(engine.directory / name, target / name)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"save_pretrained: cannot write {directory}: {error.strerror}{where}") from error
    _name_tokenizer_class(engine.directory, target / "tokenizer_config.json")
    facts = {
        "model_type": config.model_type,
        "architectures": config.architectures,
        "teacher": TEACHER,
        "seq_length": config.seq_length,
        "compute_dtype": config.compute_dtype,
        "batch_size": config.batch_size,
        "implementation": config.implementation,
        "eagle": eagle,
        **{name: getattr(generation, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    options = {k: v for k, v in generation.to_dict().items() if not k.startswith("_") and v is not None}
    files.write_text(target / "generation_config.json", json.dumps(options, indent=2) + "\n")
    files.write_text(target / "config.json", json.dumps(facts, indent=2) + "\n")


def register_tokenizer(directory: Path) -> None:
    """Tell MindFormers' AutoTokenizer, which pipelines ask next, the classes of a directory's tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, ImportError):  # there is none: a pipeline needs one from its caller
        return
    fast = type(tokenizer)
    slow = getattr(fast, "slow_tokenizer_class", None)
    mindformers.AutoTokenizer.register(EagleConfig, slow, fast, exist_ok=True)


def _name_tokenizer_class(teacher: Path, settings: Path) -> None:
    """Write which class reads the tokenizer; transformers would infer it from the teacher's config.json."""
    values = read_object(settings) if settings.is_file() else {}
    if "tokenizer_class" in values:
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(teacher)
    except (OSError, ValueError, ImportError):  # then it reads none from the teacher's directory either
        return
    write_object(settings, {**values, "tokenizer_class": type(tokenizer).__name__})


def _copy(source: Path, target: Path) -> None:
    """Copy a directory's files, over what an earlier save has left; one that is there already stays."""
    if source.resolve() == target.resolve():
        return
    target.mkdir(parents=True, exist_ok=True)
    for each in sorted(source.iterdir()):
        if each.is_file():
            with files.replacing(target / each.name) as temporary:
                shutil.copyfile(each, temporary)
