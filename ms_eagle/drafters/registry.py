"""The kinds of drafters: a new one is a file of this room and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ms_eagle.errors import UserError

if TYPE_CHECKING:  # a command line does not wait for these
    from ms_eagle.config.sections import Config
    from ms_eagle.drafters.base import Blueprint
    from ms_eagle.models.architecture import DecoderConfig
    from ms_eagle.system.progress import Progress


NONE = "none"
"""The kind that proposes nothing."""


@dataclass(frozen=True)
class Kind:
    """One value of ``drafter.kind``.

    Attributes:
        name: the value.
        label: its name for people.
        locate: where the files are that ``drafter.source`` names; None for a kind that reads none.
        open: find it and check it against its teacher; None decodes with the teacher alone.
        random: the same with random weights in the shape it would have.
        notice: what a reader of its figures must know.
        undeployable: why no bundle can have it.
    """

    name: str
    label: str
    locate: Callable[[Config, Progress], Path] | None = None
    open: Callable[[Config, DecoderConfig, Progress], Blueprint] | None = None
    random: Callable[[Config, DecoderConfig], Blueprint] | None = None
    notice: str | None = None
    undeployable: str | None = None

    @property
    def drafts(self) -> bool:
        """Whether it proposes anything."""
        return self.open is not None


def _locate_eagle3(config: Config, progress: Progress) -> Path:
    from ms_eagle.drafters.eagle3 import blueprint

    return blueprint.locate(config, progress)


def _open_eagle3(config: Config, decoder: DecoderConfig, progress: Progress) -> Blueprint:
    from ms_eagle.drafters.eagle3 import blueprint

    return blueprint.open_head(config, decoder, progress)


def _random_eagle3(config: Config, decoder: DecoderConfig) -> Blueprint:
    from ms_eagle.drafters.eagle3 import blueprint

    return blueprint.random(config, decoder)


def _open_scripted(config: Config, decoder: DecoderConfig, progress: Progress) -> Blueprint:
    from ms_eagle.drafters import scripted

    return scripted.ScriptedBlueprint(config, decoder)


def _open_ngram(config: Config, decoder: DecoderConfig, progress: Progress) -> Blueprint:
    from ms_eagle.drafters.ngram.drafter import NgramBlueprint

    return NgramBlueprint(config, decoder)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(NONE, "Teacher alone"),
        Kind("eagle3", "EAGLE-3", _locate_eagle3, _open_eagle3, _random_eagle3),
        Kind(
            "ngram",
            "N-gram",
            open=_open_ngram,
            undeployable="whose candidates are made on the host for every cycle",
        ),
        Kind(
            "synthetic",
            "Synthetic drafter",
            open=_open_scripted,
            notice="Synthetic drafter: it proposes the teacher's own continuation with a set probability. "
            "These are figures of the machinery; acceptance and speed-up say nothing about any head.",
            undeployable="a measurement that needs the model code",
        ),
    )
}


def kind_of(config: Config) -> Kind:
    """The kind that ``drafter.kind`` names.

    Raises:
        UserError: there is none of that name.
    """
    name = config.drafter.kind
    if name not in KINDS:
        raise UserError(f"drafter.kind is {name!r}; expected {', '.join(KINDS)}.")
    return KINDS[name]


def label(name: str | None, unnamed: str) -> str:
    """What people call a kind, also one of another version; ``unnamed`` where there is no name."""
    return unnamed if name is None else KINDS[name].label if name in KINDS else name


def notices(name: str | None) -> list[str]:
    """What a reader of a kind's figures must know."""
    notice = KINDS[name].notice if name in KINDS else None
    return [] if notice is None else [notice]


def is_head(name: str | None) -> bool:
    """Whether a kind drafts with weights that were trained for one teacher."""
    return name in KINDS and KINDS[name].locate is not None
