"""A head of random weights in a teacher's sizes: for measuring what a head costs, and for exports."""

from collections.abc import Sequence

import numpy as np

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
    if taps is None and decoder.default_taps is None:
        raise UserError(
            f"drafter.taps: the teacher has {decoder.num_layers} layers, too few for the default taps; name "
            "blocks below that number, such as drafter.taps=[0,1]."
        )
    asked = decoder.default_taps if taps is None else taps
    chosen, _ = head_taps.as_asked(asked, len(asked), decoder.num_layers)
    vocabulary = min(_DRAFT_VOCABULARY, decoder.vocab_size)
    config = HeadConfig(
        format="random",
        hidden_size=decoder.hidden_size,
        target_hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        num_layers=1,
        vocab_size=decoder.vocab_size,
        draft_vocab_size=vocabulary,
        rms_norm_eps=decoder.rms_norm_eps,
        rope=decoder.rope,
        taps=chosen,
        notes=("a head of random weights",),
    )
    rng = np.random.default_rng(_SEED)
    tensors = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        for name, shape in config.tensor_shapes().items()
    }
    ids = np.sort(rng.choice(decoder.vocab_size, vocabulary, replace=False)).astype(np.int32)
    return Head(config, tensors, ids, {})
