"""From the section ``drafter`` to an EAGLE-3 drafter over its own static cache."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ms_eagle.checkpoints import sources
from ms_eagle.config.sections import Config
from ms_eagle.drafters.base import Needs
from ms_eagle.drafters.eagle3.checkpoint import Head, load_head
from ms_eagle.drafters.eagle3.drafter import Eagle3Drafter
from ms_eagle.drafters.eagle3.head import DraftHead
from ms_eagle.drafters.eagle3.random_weights import random_head
from ms_eagle.drafters.eagle3.reader import VARIANTS
from ms_eagle.drafters.eagle3.vocabulary import narrowed
from ms_eagle.drafters.eagle3.window import WindowedRows
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.quantisation import Asked
from ms_eagle.models.teacher import Teacher
from ms_eagle.system.progress import Progress
from ms_eagle.tree.shape import TreeShape


def locate(config: Config, progress: Progress) -> Path:
    """Where the files of ``drafter.source`` are.

    Raises:
        UserError: it is missing, or the files cannot be had.
    """
    source = config.drafter.source
    if source is None:
        raise UserError(
            "drafter.kind is eagle3, but drafter.source is missing: set it to the directory of a head "
            "or to hf:org/name."
        )
    try:
        return sources.resolve_head(source, cache_dir=config.model.cache_path, progress=progress).directory
    except UserError as error:
        raise UserError(f"drafter.source: {error}") from error


def overrules(config: Config) -> dict[str, Any]:
    """What the section ``drafter`` says whatever the head's config.json does: arguments of ``load_head``."""
    asked = config.drafter
    named = {name: getattr(asked, name) for name in VARIANTS}
    variants = {name: value for name, value in named.items() if value is not None}
    return {"taps": asked.taps, "rope_theta": asked.rope_theta, "variants": variants}


def open_head(config: Config, decoder: DecoderConfig, progress: Progress) -> "HeadBlueprint":
    """Read the head of the section ``drafter``.

    Raises:
        UserError: it cannot be had, is damaged, or belongs to another teacher; see ``load_head``.
    """
    drafter = config.drafter
    directory = locate(config, progress)
    head = load_head(directory, teacher=decoder, **overrules(config))
    for doubt in head.config.doubts:
        progress.note(f"{drafter.source}: {doubt}")
    head = head if drafter.vocabulary is None else narrowed(head, drafter.vocabulary)
    return HeadBlueprint(replace(head, weights=_format(config)), drafter.window)


def random(config: Config, decoder: DecoderConfig) -> "HeadBlueprint":
    """A head of random weights in the teacher's sizes."""
    head = random_head(decoder, config.drafter.taps)
    return HeadBlueprint(replace(head, weights=_format(config)), config.drafter.window)


def _format(config: Config) -> Asked:
    """What ``drafter.weights`` stands for; ``auto`` has been settled, but for heads of random weights."""
    asked = config.drafter.weights
    return "stored" if asked == "auto" else asked


@dataclass(frozen=True)
class HeadBlueprint:
    """See ``base.Blueprint``.

    Attributes:
        head: its weights and variants.
        window: how many last positions it sees; None for all.
    """

    head: Head
    window: int | None = None

    @property
    def needs(self) -> Needs:
        """See ``base.Blueprint``."""
        return Needs(self.head.config.taps)

    @property
    def files(self) -> list[dict[str, str]]:
        """See ``base.Blueprint``."""
        return [{"file": name, "sha256": digest} for name, digest in self.head.hashes.items()]

    def check(self, shape: TreeShape) -> None:
        """Refuse a branch that the draft vocabulary is too small for.

        Raises:
            UserError: so it is.
        """
        shape.check_vocabulary(self.head.config.draft_vocab_size)

    def build(
        self, teacher: Teacher, backend: Backend, shape: TreeShape, *, slots: int, positions: int
    ) -> Eagle3Drafter:
        """See ``base.Blueprint``."""
        head = build_head(self.head, teacher, backend, slots=slots, positions=positions)
        if self.window is not None:
            head.rows = WindowedRows(head.rows, self.window)
        return Eagle3Drafter(head, shape.depth, shape.branch)


def build_head(head: Head, teacher: Teacher, backend: Backend, *, slots: int, positions: int) -> DraftHead:
    """The head's Cell, which may borrow the teacher's embedding and LM head."""
    return DraftHead(
        head,
        teacher.vocabulary,
        teacher.head,
        backend,
        batch=teacher.cache.shape[0],
        slots=slots,
        positions=positions,
    )
