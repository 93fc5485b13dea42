"""The shape of a new head: a block of the teacher, wider where it reads embedding and feature together."""

from collections.abc import Sequence
from dataclasses import replace

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.layouts import LAYOUTS, chosen
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig


def new_head(
    decoder: DecoderConfig,
    *,
    draft_vocab_size: int,
    layers: int,
    taps: Sequence[int],
    fc_norm: bool,
    norm_output: bool,
    layout: str | None = None,
) -> tuple[HeadConfig, str]:
    """Describe a head for a teacher; its layers have the sizes of the teacher's, and no biases.

    Args:
        decoder: the teacher.
        draft_vocab_size: V_d.
        layers: decoder layers.
        taps: blocks whose inputs feed the head, see ``chosen_taps``.
        fc_norm, norm_output: see ``HeadConfig``.
        layout: to publish it in, of ``LAYOUTS``; None for the first that can say all of it.

    Returns: the head and its layout.

    Raises:
        UserError: the layout, or every one, would lose something of the head.
    """
    plain = HeadConfig.like(
        decoder, "", draft_vocab_size=draft_vocab_size, taps=tuple(taps), num_layers=layers
    )
    config = replace(plain, fc_norm=fc_norm, norm_output=norm_output)
    name = chosen(config, layout, decoder.num_layers)
    return replace(config, format=LAYOUTS[name].format.name), name


def chosen_taps(asked: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    """The blocks whose inputs a new head taps.

    Args:
        asked: by the configuration; None asks for the default.
        num_layers: of the teacher.

    Raises:
        UserError: there is no default for a teacher this small; one is out of range or repeated, or they are
            not ascending.
    """
    if asked is None:
        taps = head_taps.default_taps(num_layers)
        if taps is None:
            raise UserError(
                f"head.taps is null, but a teacher of {num_layers} blocks has no default: name the blocks "
                "whose inputs feed the head, such as [0, 1]."
            )
        return taps
    if list(asked) != sorted(set(asked)):
        raise UserError(f"head.taps is {list(asked)}; expected different blocks in ascending order.")
    try:
        return head_taps.as_asked(asked, len(asked), num_layers)[0]
    except UserError as error:
        raise UserError(f"head.taps: {error}") from error
