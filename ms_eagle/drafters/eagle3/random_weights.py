"""A head of random weights in a teacher's sizes: for measuring what a head costs, and for exports."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ms_eagle.checkpoints.random_weights import random_tensor
from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig

_DRAFT_VOCABULARY = 8192
_SEED = 20260  # a run can be repeated


def random_head(decoder: DecoderConfig, taps: Sequence[int] | None) -> Head:
    """A one-layer head of the teacher's own sizes with random weights and a vocabulary of up to 8192.

    Raises:
        UserError: the teacher has too few layers for the default taps and none are given, or those that
            are given are out of range or repeated.
    """
    asked = head_taps.default_taps(decoder.num_layers) if taps is None else taps
    if asked is None:
        raise UserError(
            f"drafter.taps: the teacher has {decoder.num_layers} layers, too few for the default taps; name "
            "blocks below that number, such as drafter.taps=[0,1]."
        )
    chosen, _ = head_taps.as_asked(asked, len(asked), decoder.num_layers)
    size, rng = min(_DRAFT_VOCABULARY, decoder.vocab_size), np.random.default_rng(_SEED)
    config = HeadConfig.like(decoder, "random", draft_vocab_size=size, taps=chosen)
    config = replace(config, notes=("a head of random weights",))
    tensors = {name: random_tensor(name, shape, rng) for name, shape in config.tensor_shapes().items()}
    ids = np.sort(rng.choice(decoder.vocab_size, size, replace=False)).astype(np.int32)
    return Head(config, tensors, ids, {})
