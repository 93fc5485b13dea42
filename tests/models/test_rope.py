"""Rotary frequencies and tables against transformers, and what is refused."""

import numpy as np
import pytest
import torch
from support import tiny
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig

SCALINGS = {
    "default": None,
    "linear": dict(rope_type="linear", factor=2.5),
    "llama3": tiny.LLAMA3_ROPE,
    "yarn": tiny.YARN_ROPE,
    "yarn_mscale": tiny.MSCALE_YARN_ROPE,
    "yarn_attention_factor": {**tiny.YARN_ROPE, "attention_factor": 1.7},
}


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_tables_equal_transformers(scaling, head_dim):
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        rope_theta=500000.0,
        rope_scaling=SCALINGS[scaling],
        max_position_embeddings=128,
    )
    positions = torch.arange(300)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    ours = RopeConfig.from_hf(config.to_dict(), head_dim, None).tables(300)
    for got, want in zip(ours, (cos, sin), strict=True):
        # One unit in the last place of a frequency (6e-8 of it) turns the last angle by 300 * 6e-8.
        np.testing.assert_allclose(got, want[0, :, : head_dim // 2].numpy(), atol=6e-5, rtol=0)


def test_settings_in_rope_parameters():
    config = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}
    rope = RopeConfig.from_hf(config, 16, None)
    assert (rope.theta, rope.scaling, rope.parameters) == (1e6, "linear", {"factor": 4.0})


def test_llama2_has_theta_10000_by_default():
    assert RopeConfig.from_hf({}, 16, 10000.0).theta == 10000.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not implemented; known are default"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not implemented"),
        ({"rope_scaling": {"rope_type": "linear"}, "rope_theta": 1e4}, "lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}, "rope_theta": 1e4}, "factor is '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "x": 1}, "rope_theta": 1e4}, "setting 'x'"),
        ({}, "rope_theta is missing"),
        ({"rope_scaling": "yarn", "rope_theta": 1e4}, "expected a mapping"),
    ],
)
def test_refuses(config, message):
    with pytest.raises(UserError, match=message):
        RopeConfig.from_hf(config, 16, None)


def test_refuses_an_odd_head_size():
    with pytest.raises(UserError, match="head_dim is 15"):
        RopeConfig.from_hf({}, 15, 1e4)
