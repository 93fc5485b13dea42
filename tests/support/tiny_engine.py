"""Engines over tiny random teachers, with a tokenizer whose token ``t`` is the character ``chr(t)``."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from support import tiny

from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.checkpoints.random_weights import random_tensor
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.drafters.base import NoDrafter
from ms_eagle.drafters.eagle3.blueprint import HeadBlueprint
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.scripted import ScriptedDrafter, toss
from ms_eagle.engine.engine import Engine
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.teacher import Teacher
from ms_eagle.text.tokenizer import Tokenizer

CAPACITY, CHUNK, VOCABULARY = 64, 8, 96


class CharacterTokenizer(Tokenizer):
    """Ids are code points below 96; 2 ends a sequence, 0 pads."""

    vocab_size, bos_id, eos_ids, pad_id = VOCABULARY, 1, (2,), 0
    special_ids, strips_leading_space = frozenset({0, 1, 2}), False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def _encode(self, text, add_special_tokens, parse_special):
        return list(text.encode())


def decoder(model) -> DecoderConfig:
    """Our description of a transformers model."""
    settings = json.loads(model.config.to_json_string())
    return DecoderConfig.from_hf(settings | {"architectures": [type(model).__name__]})


EAGER = StockBackend("eager", ms.float32)


def default_backend() -> Backend:
    """What a CPU computes with: native kernels, which also compile several times faster."""
    try:
        return NativeBackend(threads=2, strays=8)
    except NativeUnavailable:
        return EAGER


DEFAULT = default_backend()


def teacher(model, sizes: Sizes, *, taps=(), backend=DEFAULT) -> Teacher:
    return Teacher(
        decoder(model),
        tiny.weights(model).__getitem__,
        backend,
        batch=sizes.batch,
        slots=sizes.slots,
        positions=sizes.positions,
        taps=taps,
    )


def made(graphs: Graphs, **settings) -> Engine:
    return Engine(graphs, CharacterTokenizer(), directory=Path(), **settings)


def plain(model, *, batch=1, capacity=CAPACITY, chunk=CHUNK, backend=DEFAULT) -> Engine:
    """A teacher-only engine."""
    sizes = Sizes(batch, chunk, capacity)
    verifier = teacher(model, sizes, backend=backend)
    names = {"name": "none", "kernels": backend.name, "dtype": "float32"}
    return made(Graphs(verifier, NoDrafter(), sizes, **names))


def random_head(model, *, taps=(0, 1), draft_vocabulary=32, seed=0, scale=0.3, head_dim=8) -> Head:
    """A head of random weights: its proposals are as good as none."""
    config = decoder(model)
    own = HeadConfig(
        format="random",
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=40,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        num_layers=1,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocabulary,
        rms_norm_eps=1e-5,
        rope=RopeConfig(head_dim, 1e4, "default", {}, 128),
        taps=taps,
    )
    rng = np.random.default_rng(seed)
    tensors = {
        name: random_tensor(name, shape, rng, scale=scale, draws=np.float64)
        for name, shape in own.tensor_shapes().items()
    }
    ids = np.sort(rng.choice(config.vocab_size, draft_vocabulary, replace=False)).astype(np.int32)
    return Head(own, tensors, ids, {})


def eagle(
    model,
    shape,
    *more,
    batch=1,
    head=None,
    acceptance=None,
    reorder=None,
    confidence=0.0,
    capacity=CAPACITY,
    chunk=CHUNK,
    backend=DEFAULT,
    **settings,
) -> Engine:
    """A speculating engine: with a given head, or a synthetic drafter of some acceptance.

    ``more`` are further tiers; ``settings`` go to the engine.
    """
    head = head or random_head(model)
    sizes = Sizes(batch, chunk, capacity, (shape, *more))
    verifier = teacher(model, sizes, taps=head.config.taps, backend=backend)
    drafter = HeadBlueprint(head).build(
        verifier, backend, shape, slots=sizes.draft_slots, positions=sizes.draft_positions
    )
    if acceptance is not None:
        coins = toss(verifier.positions, acceptance)
        drafter = ScriptedDrafter(drafter.head, shape.depth, shape.branch, VOCABULARY, coins, drafter.best)
    graphs = Graphs(
        verifier,
        drafter,
        sizes,
        name="eagle3" if acceptance is None else "synthetic",
        kernels=backend.name,
        dtype="float32",
        confidence=confidence,
        reorder=reorder or backend.reorder,
    )
    return made(graphs, **settings)


def prompts(*lengths: int, seed=0) -> list[list[int]]:
    """Random prompts without special tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, length).tolist() for length in lengths]
