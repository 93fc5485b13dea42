"""Reading config.json: every family, and what is refused by name."""

import pytest
from support import tiny

from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_expected_tensors_are_those_of_the_real_class(name):
    model = tiny.make(name)
    config = DecoderConfig.from_hf(model.config.to_dict() | {"architectures": [type(model).__name__]})
    real = {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert config.tensor_shapes() == real


def test_openpangu_1b_as_published():
    config = DecoderConfig.from_hf(
        {
            "architectures": ["PanguEmbeddedForCausalLM"],
            "bias": True,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_attention_heads": 12,
            "num_hidden_layers": 26,
            "num_key_value_heads": 6,
            "rope_theta": 4000000.0,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": True,
            "vocab_size": 153376,
            "max_position_embeddings": 32768,
        }
    )
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.tied) == (True, True, False, True)
    assert config.head_dim == 128
    assert config.tensor_shapes()["model.layers.25.self_attn.o_proj.bias"] == (1536,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM' is not implemented; known are LlamaFor",
        ),
        ({"architectures": []}, "architecture None is not implemented"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 4}, "6 attention heads do not divide"),
        ({"hidden_size": 50}, "head_dim is None"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(UserError, match=message):
        DecoderConfig.from_hf(BASE | change)
