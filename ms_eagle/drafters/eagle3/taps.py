"""Which teacher hidden states an EAGLE-3 head takes, in one numbering: the inputs of blocks.

Tap ``i`` is the hidden state that enters block ``i``; it is the output of block ``i - 1``. Two numberings of
the same states are in use under one key (docs/head_formats.md, "Taps").
"""

from collections.abc import Sequence

from ms_eagle.errors import UserError

KEY = "eagle_aux_hidden_state_layer_ids"


def default_taps(num_layers: int) -> tuple[int, ...] | None:
    """The blocks whose inputs a head taps when its config names none: ``2, L//2, L-3``.

    None below seven layers, where they would repeat or leave the order.
    """
    return (2, num_layers // 2, num_layers - 3) if num_layers >= 7 else None


def from_config(ids: object, nested: bool, count: int, num_layers: int) -> tuple[tuple[int, ...], list[str]]:
    """Read the ids of a head's config.json.

    Args:
        ids: what stands under `KEY`; None or an empty list asks for the default.
        nested: the key stands in ``eagle_config``, where trainers number outputs of blocks; at the top level
            it numbers inputs. The two default triples are recognised wherever they stand.
        count: how many hidden states ``fc.weight`` takes.
        num_layers: layers of the teacher, L.

    Returns: the taps, ascending, and notes for the user.

    Raises:
        UserError: malformed ids; another number of them than ``count``; one out of range or repeated; none
            given where there is no default.
    """
    default = default_taps(num_layers)
    if ids is None or ids == []:
        if default is None or count != len(default):
            raise UserError(
                f"config.json does not say which {count} hidden states the head takes, and there is no "
                f"default for a teacher of {num_layers} layers; name the taps explicitly, as inputs of "
                "blocks."
            )
        return default, []  # every engine takes these
    if not isinstance(ids, list) or any(type(i) is not int for i in ids):
        raise UserError(f"config.json: {KEY} is {ids!r}; expected a list of whole numbers.")
    if min(ids) < 0:  # some code counts them from the end, other code means the embedding
        raise UserError(
            f"config.json: {KEY} {ids} has one below 0, which code reads in several ways; the teacher has "
            f"blocks 0 to {num_layers - 1}: name the taps in drafter.taps, as inputs of blocks."
        )
    outputs = (1, num_layers // 2 - 1, num_layers - 4)
    shifted = tuple(ids) != default and (nested or tuple(ids) == outputs)
    taps = tuple(i + shifted for i in ids)
    notes = (
        [f"{KEY} {ids} is read as outputs of blocks, which are inputs of {_listed(taps)}."] if shifted else []
    )
    said = f"config.json: {KEY} {ids} means the taps {_listed(taps)} (inputs of blocks)"
    return _checked(taps, count, num_layers, said, notes)


def as_asked(taps: Sequence[int], count: int, num_layers: int) -> tuple[tuple[int, ...], list[str]]:
    """Check taps that the user names, as inputs of blocks; arguments and errors as for `from_config`."""
    said = f"the taps asked for are {_listed(taps)} (inputs of blocks)"
    return _checked(
        tuple(taps), count, num_layers, said, ["the taps are used as asked, whatever config.json says."]
    )


def _checked(
    taps: tuple[int, ...], count: int, num_layers: int, said: str, notes: list[str]
) -> tuple[tuple[int, ...], list[str]]:
    if len(taps) != count:
        raise UserError(f"{said}, but fc.weight takes {count} hidden states.")
    if len(set(taps)) != len(taps):
        raise UserError(f"{said}; one is repeated.")
    if any(not 0 <= tap < num_layers for tap in taps):
        last = "; the last block's output cannot be tapped" if num_layers in taps else ""
        raise UserError(f"{said}; the teacher has blocks 0 to {num_layers - 1}{last}.")
    if list(taps) != sorted(taps):
        notes = [*notes, "the taps are not ascending; engines concatenate hidden states in ascending order."]
    return tuple(sorted(taps)), notes


def _listed(taps: Sequence[int]) -> str:
    return ", ".join(map(str, taps))
