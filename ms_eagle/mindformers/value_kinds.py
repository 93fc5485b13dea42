"""What kind of value each generation option takes; anything else is refused by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mindformers import GenerationConfig

from ms_eagle.errors import UserError


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer of Python or numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is an integer or a float of Python or numpy."""
    return is_whole(value) or isinstance(value, float | np.floating)


def _is_switch(value: Any) -> bool:
    return isinstance(value, int | np.integer | np.bool_) and value in (0, 1)


_WHOLE = ("max_length", "max_new_tokens", "min_length", "min_new_tokens", "pad_token_id")
_SWITCHES = (
    "do_sample",
    "renormalize_logits",
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
)


def check_kinds(config: GenerationConfig) -> None:
    """Refuse values that are of another kind than their option; None stands for every default.

    Options of sampling count only with ``do_sample``. Ranges are checked where the values are used.

    Raises:
        UserError: naming the option, its value and what is expected.
    """
    _check(config, _WHOLE, is_whole, "a whole number")
    _check(config, _SWITCHES, _is_switch, "True or False")
    _check(config, ("repetition_penalty",), is_number, "a number")
    if config.do_sample:
        _check(config, ("temperature", "top_p"), is_number, "a number")
        _check(config, ("top_k",), is_whole, "a whole number")


def token_ids(value: Any) -> list[int]:
    """``eos_token_id`` as a list: it may be None, an id, or several in any container.

    Raises:
        UserError: it is none of these.
    """
    ids = [value] if is_whole(value) else [] if value is None else value
    if isinstance(ids, np.ndarray | list | tuple | set | frozenset) and all(map(is_whole, ids)):
        return [int(token) for token in ids]
    raise UserError(f"eos_token_id is {value!r}; expected a token id, a list of them, or None.")


def _check(
    config: GenerationConfig, names: tuple[str, ...], holds: Callable[[Any], bool], expected: str
) -> None:
    for name in names:
        found = getattr(config, name)
        if found is not None and not holds(found):
            raise UserError(f"{name} is {found!r}; expected {expected}, or None.")
