"""What a corpus was made with: the teacher, its tokenizer and template, and how."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ms_eagle.checkpoints import pointer
from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.system.progress import Progress
from ms_eagle.system.provenance import weights_hash
from ms_eagle.text.template import load_template

if TYPE_CHECKING:  # these import mindspore, which a reader of a corpus need not wait for
    from ms_eagle.config.sections import Config
    from ms_eagle.loading import Model

_VOCABULARIES = ("tokenizer.json", "tokenizer.model")


class Record(BaseModel):
    """JSON values with checked types, immutable once read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Provenance(Record):
    """What the conversations depend on; corpora of different provenance are never mixed.

    Attributes:
        teacher: where the teacher came from, for people.
        teacher_sha256: over its weight files and config.json.
        template_sha256, tokenizer_sha256: of the chat template's text and of the vocabulary file.
        vocab_size: the teacher's: every id is below it.
        system_prompt, thinking: as in the section ``model`` of the configuration.
        seed: of the sampled user turns.
        generation: limits and filters, by name.
    """

    teacher: str
    teacher_sha256: str
    template_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    system_prompt: str | None
    thinking: str | None
    seed: int
    generation: dict[str, int | float]


def identity(model: "Model", config: "Config", progress: Progress | None = None) -> dict[str, Any]:
    """The fields of ``Provenance`` that a teacher and its section ``model`` determine.

    Raises:
        UserError: there is no chat template.
    """
    directory = model.files.directory
    template = load_template(directory, config.model.chat_template)
    vocabulary = next(directory / name for name in _VOCABULARIES if (directory / name).is_file())
    return {
        "teacher": model.files.origin,
        "teacher_sha256": weights_hash(directory, progress, pointer.files(directory)),
        "template_sha256": hashlib.sha256(template.source.encode()).hexdigest(),
        "tokenizer_sha256": files.sha256(vocabulary),
        "vocab_size": model.decoder.vocab_size,
        "system_prompt": config.model.system_prompt,
        "thinking": config.model.thinking,
    }


def check_same(corpus: Provenance, mine: Mapping[str, Any], what: str) -> None:
    """Refuse another teacher, tokenizer or template; ``what`` names the corpus.

    Raises:
        UserError: names what differs with both hashes.
    """
    for name, asked in (
        ("teacher", "model.source"),
        ("tokenizer", "model.source"),
        ("template", "model.chat_template"),
    ):
        theirs, ours = getattr(corpus, f"{name}_sha256"), mine[f"{name}_sha256"]
        if theirs != ours:
            chat = "chat " if name == "template" else ""
            whose = f" ({corpus.teacher})" if name == "teacher" else ""
            ourselves = f" ({mine['teacher']})" if name == "teacher" else ""
            raise UserError(
                f"{what} was made with another {chat}{name}: its sha256 is {theirs}{whose}, that of the "
                f"configured one {ours}{ourselves}; set {asked} to what made it, or make another corpus"
            )


def check_settings(corpus: Provenance, mine: Provenance, what: str) -> None:
    """Refuse to go on with conversations that were made in another way.

    Raises:
        UserError: names the first difference.
    """
    check_same(corpus, mine.model_dump(), what)
    theirs, ours = corpus.model_dump(exclude={"teacher"}), mine.model_dump(exclude={"teacher"})
    theirs |= theirs.pop("generation")
    ours |= ours.pop("generation")
    for name in sorted(theirs | ours):
        if theirs.get(name) != ours.get(name):
            raise UserError(
                f"{what} was made with {name} {theirs.get(name)!r}, asked for is {ours.get(name)!r}; "
                "ask for the same, or name another --out"
            )
