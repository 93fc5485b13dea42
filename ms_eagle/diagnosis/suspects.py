"""Other ways to read an EAGLE-3 head, one difference each: what to try when its acceptance is low.

Every difference here has been the cause in some engine or trainer (docs/check_head.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.reader import VARIANTS
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.rope import RopeConfig

_DEFAULT_THETA = 10000.0
_MOST_PERMUTED = 3  # taps: more have too many orders to try


@dataclass(frozen=True)
class Reading:
    """One way to read a head.

    Attributes:
        name: what differs, such as ``taps 1, 4, 6``; empty for the head as it is.
        advice: how to make the difference permanent.
        config: of the drafter; its ``taps`` do not matter.
        taps: inputs of blocks, in the order in which they are concatenated.
        target_ids: int32 ``[V_d]``, the token of each draft id.
    """

    name: str
    advice: str
    config: HeadConfig
    taps: tuple[int, ...]
    target_ids: np.ndarray


def as_it_is(head: Head) -> Reading:
    """The head as it was loaded."""
    return Reading("", "", head.config, head.config.taps, head.target_ids)


def suspects(head: Head, teacher: DecoderConfig) -> list[Reading]:
    """Every other reading worth a try; those that share a drafter stand together."""
    plain = as_it_is(head)
    return [*_other_taps(plain, teacher), *_other_maps(plain), *_other_options(plain, teacher)]


def _other_taps(plain: Reading, teacher: DecoderConfig) -> Iterator[Reading]:
    own, layers = plain.taps, teacher.num_layers
    sets = [tuple(tap + 1 for tap in own), tuple(tap - 1 for tap in own)]
    default = head_taps.default_taps(layers)
    if default is not None and len(default) == len(own):
        sets.append(default)
    for taps in dict.fromkeys(sets):
        if taps != own and all(0 <= tap < layers for tap in taps):
            listed = ", ".join(map(str, taps))
            advice = f"set drafter.taps=[{listed}]"
            yield replace(plain, name=f"taps {listed}", advice=advice, taps=taps)
    orders = permutations(own) if len(own) <= _MOST_PERMUTED else [own, own[::-1]]
    for taps in orders:
        if taps != own:
            listed = ", ".join(map(str, taps))
            yield replace(
                plain,
                name=f"taps concatenated as {listed}",
                advice=f"the columns of fc.weight stand in the order {listed}: reorder them ascending",
                taps=taps,
            )


def _other_maps(plain: Reading) -> Iterator[Reading]:
    ids, vocabulary = plain.target_ids, plain.config.vocab_size
    ascending = np.sort(ids)
    if not np.array_equal(ids, ascending):
        yield replace(
            plain,
            name="the draft vocabulary in ascending order",
            advice="the rows of lm_head are in another order than d2t: sort the target ids of d2t",
            target_ids=ascending,
        )
    offsets = ids - np.arange(ids.size)
    unique = np.unique(offsets).size == ids.size
    if unique and offsets.min() >= 0 and offsets.max() < vocabulary:
        yield replace(
            plain,
            name="d2t as target ids",
            advice="d2t holds target ids where offsets are expected: subtract arange from it",
            target_ids=offsets.astype(np.int32),
        )


def _other_options(plain: Reading, teacher: DecoderConfig) -> Iterator[Reading]:
    config = plain.config
    for rope, advice in _ropes(config.rope, teacher.rope):
        scaling = "" if rope.scaling == config.rope.scaling else f", {rope.scaling} scaling"
        yield replace(
            plain,
            name=f"rope_theta {rope.theta:g}{scaling}",
            advice=advice,
            config=replace(config, rope=rope),
        )
    for option in VARIANTS:
        value = not getattr(config, option)
        text = str(value).lower()
        yield replace(
            plain,
            name=f"{option} {text}",
            advice=f"set drafter.{option}={text}",
            config=replace(config, **{option: value}),
        )


def _ropes(own: RopeConfig, teacher: RopeConfig) -> Iterator[tuple[RopeConfig, str]]:
    """Other rotations with what to do about them: another base, the teacher's, none scaled."""
    tried = {(own.theta, own.scaling)}
    bases = [(theta, own.scaling, own.parameters) for theta in (_DEFAULT_THETA, teacher.theta)]
    scaled = [(theta, "default", {}) for theta in (own.theta, _DEFAULT_THETA)]
    for theta, scaling, parameters in [*bases, *scaled, (teacher.theta, teacher.scaling, teacher.parameters)]:
        if (theta, scaling) in tried:
            continue
        tried.add((theta, scaling))
        advice = (
            f"set drafter.rope_theta={theta:g}"
            if scaling == own.scaling
            else "set rope_theta and rope_scaling so in the head's config.json"
        )
        yield replace(own, theta=theta, scaling=scaling, parameters=parameters), advice
