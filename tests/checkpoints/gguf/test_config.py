import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ms_eagle.checkpoints.gguf.config import clean_decimal, from_metadata
from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig

BASE = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.rope.freq_base": 500000.0,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def translate(extra: dict[str, object] | None = None, drop: str = "", **options: object):
    keys = {key: value for key, value in BASE.items() if key != drop}
    for key, value in (extra or {}).items():
        keys[key if key.startswith(("general.", "tokenizer.", "split.")) else f"llama.{key}"] = value
    options = {"vocab_size": 100, "tied": True, "attention_bias": False} | options
    return from_metadata(keys, **options)


def test_a_plain_llama() -> None:
    config = translate()
    assert config.interleaved
    assert config.model == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "vocab_size": 100,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    assert config.generation == {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("name", "architecture"), [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")]
)
def test_qwen_rows_are_not_interleaved(name: str, architecture: str) -> None:
    keys = {key.replace("llama.", f"{name}."): value for key, value in BASE.items()}
    keys["general.architecture"] = name
    config = from_metadata(keys, vocab_size=100, tied=False, attention_bias=name == "qwen2")
    assert not config.interleaved
    assert config.model["architectures"] == [architecture]
    assert config.model["model_type"] == name


@pytest.mark.parametrize("value", [1e-5, 1e-6, 1e-12, 10000.0, 500000.0, 1e6, 0.1, 40.0, 1.5])
def test_float32_values_become_their_decimals(value: float) -> None:
    assert clean_decimal(float(np.float32(value))) == value


def test_defaults_of_absent_keys() -> None:
    assert translate(drop="llama.rope.freq_base").model["rope_theta"] == 10000.0
    assert translate(drop="llama.attention.head_count_kv").model["num_key_value_heads"] == 4
    assert translate(drop="llama.rope.dimension_count").model["head_dim"] == 64
    assert translate({"attention.head_count_kv": [2, 2, 2]}).model["num_key_value_heads"] == 2


def test_every_end_of_turn_id_ends_generation() -> None:
    ids = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2}
    assert translate(ids).generation["eos_token_id"] == [2, 7]
    assert translate(ids).model["eos_token_id"] == 2


def test_linear_scaling() -> None:
    expected = {"rope_type": "linear", "factor": 2.5}
    assert (
        translate({"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}).model["rope_scaling"]
        == expected
    )
    assert translate({"rope.scale_linear": 2.5}).model["rope_scaling"] == expected
    assert translate({"rope.scaling.type": "none", "rope.scaling.factor": 2.5}).model["rope_scaling"] is None


def test_yarn_scaling() -> None:
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 1024,
        "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.finetuned": True,
        "rope.scaling.yarn_ext_factor": 1.0,
    }
    scaling = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
    }
    assert translate(keys).model["rope_scaling"] == scaling
    attention = translate(keys | {"rope.scaling.attn_factor": 0.5}).model["rope_scaling"]["attention_factor"]
    assert attention == pytest.approx(0.5 * (0.1 * math.log(4.0) + 1.0))


def llama3_divisors(factor: float, original: int, theta: float, high: float = 4.0) -> np.ndarray:
    """The divisors that GGUF stores, from transformers' scaled and unscaled frequencies, as float32."""
    scaling = dict(
        rope_type="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )
    config = LlamaConfig(head_dim=64, rope_theta=theta, rope_scaling=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** -(np.arange(0, 64, 2) / 64)
    return (plain / scaled.double().numpy()).astype(np.float32)


@pytest.mark.parametrize(
    ("factor", "original", "theta"), [(8.0, 8192, 500000.0), (32.0, 8192, 500000.0), (4.0, 1024, 10000.0)]
)
def test_llama3_scaling_is_recovered(factor: float, original: int, theta: float) -> None:
    divisors = llama3_divisors(factor, original, theta)
    found = translate({"rope.freq_base": theta}, rope_factors=divisors).model["rope_scaling"]
    assert found.pop("original_max_position_embeddings") == pytest.approx(original, abs=1)
    assert found == {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_divisors_of_one_mean_no_scaling() -> None:
    assert translate(rope_factors=np.ones(32, np.float32)).model["rope_scaling"] is None


def test_scaled_frequencies_are_those_of_the_file() -> None:
    divisors = llama3_divisors(8.0, 2048, 500000.0)
    model = translate(rope_factors=divisors).model
    inverse, _ = RopeConfig.from_hf(model, 64, None).frequencies()
    np.testing.assert_allclose(inverse, 500000.0 ** -(np.arange(0, 64, 2) / 64) / divisors, rtol=1e-4)


@pytest.mark.parametrize(
    "extra",
    [
        {"tensor_data_layout": "Meta AI original pth"},
        {"attention.layer_norm_epsilon": 1e-5},
        {"logit_scale": 1.0, "residual_scale": 0.0, "expert_shared_count": 0, "final_logit_softcapping": 0.0},
        *({"tokenizer.ggml.padding_token_id": wrong} for wrong in (100, 4294967295, -1, "2", True)),
    ],
)
def test_what_says_nothing_is_read_over(extra: dict[str, object]) -> None:
    assert translate(extra) == translate()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"general.architecture": "mamba"},
            "architecture 'mamba' is not known; known are llama, qwen2, qwen3",
        ),
        ({"split.count": 3}, "one part of a split model"),
        ({"attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv = 8.0 is not implemented"),
        ({"logit_scale": 0.5}, "llama.logit_scale = 0.5 is not implemented"),
        ({"logit_scale": [1.0]}, "llama.logit_scale = .* is not implemented"),
        ({"expert_count": 8}, "llama.expert_count = 8 is not implemented"),
        ({"attention.sliding_window": 4096}, "sliding_window = 4096 is not implemented"),
        ({"embedding_length": 0}, "llama.embedding_length is 0, expected one positive integer"),
        ({"block_count": "3"}, "llama.block_count is '3'"),
        ({"feed_forward_length": [512, 256, 512]}, "llama.feed_forward_length is .* expected one positive"),
        ({"attention.layer_norm_rms_epsilon": math.nan}, "rms_epsilon is nan, expected a positive number"),
        ({"rope.freq_base": math.inf}, "freq_base is inf, expected a positive number"),
        ({"attention.value_length": 32}, "value_length is 32, expected 64"),
        ({"rope.dimension_count": 32, "attention.key_length": 64}, "rotation of a part of each head"),
        ({"vocab_size": 99}, "llama.vocab_size is 99, expected 100"),
        ({"tokenizer.ggml.eos_token_id": 100}, "eos_token_id is 100, expected an id below 100"),
        (
            {"rope.scaling.type": "longrope"},
            "'longrope' is not known; known are none, linear, yarn and llama3",
        ),
    ],
)
def test_what_is_not_implemented_is_named(extra: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate(extra)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match=r"llama\.block_count is None"):
        translate(drop="llama.block_count")
    with pytest.raises(UserError, match="architecture None is not known"):
        translate(drop="general.architecture")


@pytest.mark.parametrize(
    ("divisors", "extra", "message"),
    [
        (np.linspace(1, 9, 32, dtype=np.float32), {}, "not llama3 scaling"),
        (-np.ones(32, np.float32), {}, "not positive"),
        (np.full(32, np.nan, np.float32), {}, "not positive"),
        (llama3_divisors(8.0, 8192, 500000.0, high=16.0), {}, "not llama3 scaling"),
        (np.ones(16, np.float32), {}, "has 16 values, expected 32"),
        (
            llama3_divisors(8.0, 8192, 500000.0),
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            "rope_freqs.weight and linear scaling",
        ),
    ],
)
def test_other_divisors_are_refused(divisors: np.ndarray, extra: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate(extra, rope_factors=divisors)
