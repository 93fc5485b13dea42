"""The teacher against transformers, through chunks, single steps, batches and trees."""

import json

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor, nn
from support import tiny

from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.teacher import Teacher

SLOTS = 41


class Forward(nn.Cell):
    """Logits and taps of one call."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def construct(self, tokens, positions, slots, mask):
        hidden, taps = self.teacher(tokens, positions, slots, mask)
        return self.teacher.logits(hidden), taps


BACKENDS = {
    "eager": lambda: StockBackend("eager", ms.float32),
    "native": lambda: NativeBackend(threads=2, strays=4),
}


def build(model, batch=1, taps=(), slots=SLOTS, backend="eager"):
    config = DecoderConfig.from_hf(
        json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}
    )
    tensors = tiny.weights(model)
    return Forward(
        Teacher(
            config,
            tensors.__getitem__,
            BACKENDS[backend](),
            batch=batch,
            slots=slots,
            positions=slots,
            taps=taps,
        )
    )


def run(forward, tokens, positions, slots, visible):
    """Call with numpy arrays; ``visible`` is ``[B, N, S]``, True = keep."""
    logits, taps = forward(
        Tensor(np.asarray(tokens, np.int32)),
        Tensor(np.asarray(positions, np.int32)),
        Tensor(np.asarray(slots, np.int32)),
        Tensor(~np.asarray(visible)[:, None]),
    )
    return logits.asnumpy(), taps.asnumpy()


def causal(start, rows, slots=SLOTS):
    return np.arange(slots)[None, None] <= (start + np.arange(rows))[None, :, None]


def expected(model, tokens):
    with torch.no_grad():
        out = model(torch.tensor(tokens), output_hidden_states=True)
    return out.logits.numpy(), [h.numpy() for h in out.hidden_states]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_matches_transformers_through_chunks_and_single_steps(name, backend):
    model = tiny.make(name)
    taps = (0, 1)
    forward = build(model, taps=taps, backend=backend)
    tokens = np.random.default_rng(1).integers(0, 96, (1, 24))
    logits, hidden = expected(model, tokens)
    n = 0
    for rows in (8, 8, 1, 1, 1, 1, 1, 1, 1, 1):
        positions = np.arange(n, n + rows)[None]
        got, features = run(forward, tokens[:, n : n + rows], positions, positions, causal(n, rows))
        np.testing.assert_allclose(got, logits[:, n : n + rows], atol=1e-4, rtol=0)
        want = np.concatenate([hidden[i][:, n : n + rows] for i in taps], 2)
        np.testing.assert_allclose(features, want, atol=1e-4, rtol=0)
        n += rows
    assert n == tokens.shape[1]
    assert len(forward.compile_cache) == 2  # one graph a row count, however many calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_batch_do_not_meet(backend):
    model = tiny.make("llama")
    forward = build(model, batch=2, backend=backend)
    tokens = np.random.default_rng(2).integers(0, 96, (2, 8))
    logits, _ = expected(model, tokens)
    positions = np.tile(np.arange(8), (2, 1))
    got, _ = run(forward, tokens, positions, positions, np.repeat(causal(0, 8), 2, 0))
    np.testing.assert_allclose(got, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tree_rows_see_their_ancestors_only(backend):
    #        0            root, committed tokens before it
    #      1   2
    #     3     4
    parents = [0, 0, 0, 1, 2]
    depths = np.array([0, 1, 1, 2, 2])
    model = tiny.make("qwen3")
    forward = build(model, backend=backend)
    rng = np.random.default_rng(3)
    prompt, rows = rng.integers(0, 96, 6), rng.integers(0, 96, 5)
    positions = np.arange(6)[None]
    run(forward, prompt[None], positions, positions, causal(0, 6))
    visible = np.zeros((1, 5, SLOTS), bool)
    visible[0, :, :6] = True
    chains = []
    for row in range(5):
        chain = [row]
        while chain[0] != 0:
            chain.insert(0, parents[chain[0]])
        visible[0, row, [6 + r for r in chain]] = True
        chains.append(chain)
    got, _ = run(forward, rows[None], 6 + depths[None], 6 + np.arange(5)[None], visible)
    for row, chain in enumerate(chains):
        want, _ = expected(model, np.concatenate([prompt, rows[chain]])[None])
        np.testing.assert_allclose(got[0, row], want[0, len(prompt) + len(chain) - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padded_rows_write_the_trash_slot_and_nothing_else(backend):
    forward = build(tiny.make("llama"), backend=backend)
    before = [
        p.asnumpy().reshape(forward.teacher.cache.shape).copy()
        for p in (*forward.teacher.cache.keys, *forward.teacher.cache.values)
    ]
    trash = forward.teacher.cache.trash
    assert trash == SLOTS - 1
    visible = causal(0, 4)
    visible[0, 2:] = np.arange(SLOTS) == 0  # padded rows keep one key, so that softmax stays finite
    logits, _ = run(forward, [[5, 6, 7, 8]], [[0, 1, 0, 0]], [[0, 1, trash, trash]], visible)
    assert np.isfinite(logits).all()
    after = [
        p.asnumpy().reshape(forward.teacher.cache.shape)
        for p in (*forward.teacher.cache.keys, *forward.teacher.cache.values)
    ]
    for old, new in zip(before, after, strict=True):
        changed = np.abs(new - old).sum((0, 1, 3)) > 0
        assert np.flatnonzero(changed).tolist() == [0, 1, trash]


def test_float16_stays_near_float32():
    model = tiny.make("llama")
    config = DecoderConfig.from_hf(
        json.loads(model.config.to_json_string()) | {"architectures": ["LlamaForCausalLM"]}
    )
    tensors = tiny.weights(model)
    teacher = Teacher(
        config, tensors.__getitem__, StockBackend("eager", ms.float16), batch=1, slots=SLOTS, positions=SLOTS
    )
    tokens = np.random.default_rng(4).integers(0, 96, (1, 8))
    positions = np.arange(8)[None]
    got, _ = run(Forward(teacher), tokens, positions, positions, causal(0, 8))
    want, _ = expected(model, tokens)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max(), rtol=0)
