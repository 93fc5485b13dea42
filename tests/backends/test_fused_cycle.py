"""The Ascend code path without an NPU: its tokens through a stand-in operator (its graph: test_rules)."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from support import tiny, tiny_engine
from support.flash_attention_stand_in import FlashAttentionStandIn

from ms_eagle.backends.stock import StockBackend
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.kernels import fused
from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

SHAPE = TreeShape(6, 3, 3)


FUSED = StockBackend("fused", ms.float16)


@pytest.fixture(scope="module")
def model():
    return tiny.make("qwen3", seed=2)


def engine(model, **settings):
    head = tiny_engine.random_head(model, head_dim=16)
    return tiny_engine.eagle(model, SHAPE, head=head, backend=FUSED, **settings)


def test_stand_in_gives_the_same_tokens(model, monkeypatch):
    monkeypatch.setattr(fused, "FlashAttentionScore", FlashAttentionStandIn)
    # A float16 row changes in its last bits with the rows beside it: no draw here lies that near to a border.
    prompts = tiny_engine.prompts(1, 9, 17, seed=2)
    speculative = engine(model, acceptance=0.7)
    alone = tiny_engine.plain(model, backend=FUSED)
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=4)):
        options = GenerationOptions(20, sampling, ignore_eos=True)
        got = [c.token_ids for c in speculative.generate(prompts, options)]
        assert got == [c.token_ids for c in alone.generate(prompts, options)]


def test_stand_in_agrees_with_stock_operators():
    rng = np.random.default_rng(0)
    query, key, value = (
        Tensor(rng.standard_normal(shape).astype(np.float16))
        for shape in ((2, 4, 5, 16), (2, 2, 12, 16), (2, 2, 12, 16))
    )
    mask = rng.random((2, 1, 5, 12)) < 0.5
    mask[:, :, :, 3] = False
    operator = FlashAttentionStandIn(4, scale_value=0.25, input_layout="BNSD", sparse_mode=1)
    got = operator(query, key, value, None, None, None, Tensor(mask))[3].asnumpy()
    want = EagerAttention(16)(query, key, value, Tensor(mask)).asnumpy()
    np.testing.assert_allclose(got, want, atol=4e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(query=np.zeros((1, 4, 3, 16), np.float32)), "float16 and bfloat16"),
        (dict(mask=np.zeros((1, 1, 3, 9), bool)), "attn_mask has shape"),
        (dict(mask=np.zeros((1, 1, 3, 8), np.float16)), "attn_mask has dtype"),
        (dict(key=np.zeros((1, 3, 8, 16), np.float16)), "4 query heads, 3 key heads"),
    ],
)
def test_stand_in_refuses_what_the_operator_refuses(change, message):
    good = dict(
        query=np.zeros((1, 4, 3, 16), np.float16),
        key=np.zeros((1, 2, 8, 16), np.float16),
        mask=np.zeros((1, 1, 3, 8), bool),
    )
    query, key, mask = (Tensor(value) for value in {**good, **change}.values())
    operator = FlashAttentionStandIn(4, input_layout="BNSD", sparse_mode=1)
    with pytest.raises((TypeError, ValueError), match=message):
        operator(query, key, key, None, None, None, mask)


def test_stand_in_refuses_a_band_and_shows_a_row_without_keys():
    with pytest.raises(ValueError, match="sparse_mode is 0"):
        FlashAttentionStandIn(4, input_layout="BNSD")
    operator = FlashAttentionStandIn(2, input_layout="BNSD", sparse_mode=1)
    query, key = (Tensor(np.ones((1, 2, rows, 16), np.float16)) for rows in (2, 3))
    mask = np.zeros((1, 1, 2, 3), bool)
    mask[0, 0, 1] = True
    out = operator(query, key, key, None, None, None, Tensor(mask))[3].asnumpy()
    assert np.isfinite(out[0, :, 0]).all()
    assert np.isnan(out[0, :, 1]).all()
