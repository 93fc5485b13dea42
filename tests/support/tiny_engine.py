"""Engines over tiny random teachers, with a tokenizer whose token ``t`` is the character ``chr(t)``."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from support import tiny

from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.cycle.graphs import EagleGraphs, TeacherGraphs
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.head import Drafter
from ms_eagle.drafters.eagle3.proposer import Eagle3Proposer
from ms_eagle.drafters.scripted import SyntheticEngine, SyntheticProposer
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


def teacher(model, *, batch=1, rows=1, taps=(), backend=DEFAULT, capacity=CAPACITY) -> Teacher:
    config = decoder(model)
    slots = capacity + rows + 1
    return Teacher(
        config,
        tiny.weights(model).__getitem__,
        backend,
        batch=batch,
        slots=slots,
        positions=slots,
        taps=taps,
    )


def plain(model, *, batch=1, capacity=CAPACITY, chunk=CHUNK, backend=DEFAULT) -> Engine:
    """A teacher-only engine."""
    graphs = TeacherGraphs(
        teacher(model, batch=batch, capacity=capacity, backend=backend),
        chunk=chunk,
        capacity=capacity,
        kernels=backend.name,
    )
    return Engine(graphs, CharacterTokenizer(), directory=Path(), dtype="float32", load_seconds=0.0)


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
        name: (rng.standard_normal(shape) * scale if len(shape) > 1 else np.ones(shape)).astype(np.float32)
        for name, shape in own.tensor_shapes().items()
    }
    ids = np.sort(rng.choice(config.vocab_size, draft_vocabulary, replace=False)).astype(np.int32)
    return Head(own, tensors, ids, {})


def eagle(
    model,
    shape,
    *,
    batch=1,
    head=None,
    acceptance=None,
    reorder=None,
    confidence=0.0,
    capacity=CAPACITY,
    chunk=CHUNK,
    backend=DEFAULT,
) -> Engine:
    """A speculating engine: with a given head, or a synthetic drafter of some acceptance."""
    head = head or random_head(model)
    verifier = teacher(
        model,
        batch=batch,
        rows=shape.rows,
        taps=head.config.taps,
        capacity=capacity,
        backend=backend,
    )
    slots = capacity + (shape.depth - 1) * shape.branch + 1
    drafter = Drafter(
        head,
        verifier.vocabulary,
        verifier.head,
        backend,
        batch=batch,
        slots=slots,
        positions=slots + shape.depth,
    )
    kind, proposer = Engine, Eagle3Proposer(drafter, shape)
    if acceptance is not None:
        positions = verifier.cache.shape[2]
        kind = SyntheticEngine
        proposer = SyntheticProposer(drafter, shape, VOCABULARY, positions, acceptance)
    graphs = EagleGraphs(
        verifier,
        proposer,
        shape,
        drafter="eagle3" if acceptance is None else "synthetic",
        chunk=chunk,
        capacity=capacity,
        kernels=backend.name,
        confidence=confidence,
        reorder=reorder or backend.reorder,
    )
    return kind(graphs, CharacterTokenizer(), directory=Path(), dtype="float32", load_seconds=0.0)


def prompts(*lengths: int, seed=0) -> list[list[int]]:
    """Random prompts without special tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, length).tolist() for length in lengths]
