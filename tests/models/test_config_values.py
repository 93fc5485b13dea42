"""Numbers and switches of a config.json: whatever stands there, one line names the key."""

import json
import math

import pytest

from ms_eagle.config import schema
from ms_eagle.drafters.eagle3 import formats
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.config_values import DecoderValues, RopeValues
from ms_eagle.models.rope import RopeConfig

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 128,
}
SCALINGS = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0, "mscale": 1.0},
}
NO_VALUE = [math.nan, math.inf, -math.inf, 10**400, -1, "1", "false", {}]
NUMBERS = [key for key, info in DecoderValues.model_fields.items() if "number" in schema.expected(info)]
SWITCHES = [key for key, info in DecoderValues.model_fields.items() if "true" in schema.expected(info)]


@pytest.mark.parametrize("value", NO_VALUE, ids=repr)
@pytest.mark.parametrize("key", DecoderValues.model_fields)
def test_no_value_of_another_kind_or_range_passes(key, value):
    for read in (DecoderConfig.from_hf, formats.flatten):
        with pytest.raises(UserError, match=f"^config.json: {key} is .*; expected"):
            read({**BASE, key: value})


def test_zeros_booleans_and_numbers_are_not_taken_for_each_other():
    for key in NUMBERS:
        for value in (True, [True]):
            with pytest.raises(UserError, match=f"^config.json: {key} is "):
                DecoderConfig.from_hf({**BASE, key: value})
    for key in SWITCHES:
        for value in (0, 1):
            with pytest.raises(UserError, match=f"^config.json: {key} is "):
                DecoderConfig.from_hf({**BASE, key: value})


@pytest.mark.parametrize("key", [key for key in BASE if key not in ("architectures", "num_key_value_heads")])
def test_null_is_no_default_of_a_teacher(key):
    if key == "rope_theta":
        assert DecoderConfig.from_hf({**BASE, key: None}).rope.theta == 10000.0  # as where it is absent
        return
    with pytest.raises(UserError, match=f"^config.json: {key} is None; expected"):
        DecoderConfig.from_hf({**BASE, key: None})


def test_a_billion_layers_take_no_memory():
    with pytest.raises(UserError, match="num_hidden_layers is 1000000000; expected a whole number from 1 to"):
        DecoderConfig.from_hf({**BASE, "num_hidden_layers": 10**9})


@pytest.mark.parametrize("value", [*NO_VALUE, 0, True], ids=repr)
@pytest.mark.parametrize(
    ("scaling", "key"), [(name, key) for name, settings in SCALINGS.items() for key in settings]
)
def test_no_rope_setting_out_of_range_passes(scaling, key, value):
    settings = {"rope_type": scaling, **SCALINGS[scaling], key: value}
    if key == "mscale" and value == 0 and value is not True and value is not False:
        return  # off
    with pytest.raises(UserError, match=f"^config.json: rope setting {key} is .*; expected"):
        RopeConfig.from_hf({**BASE, "rope_scaling": settings}, 8, None)


def test_frequency_bands_need_a_width():
    settings = {"rope_type": "llama3", **SCALINGS["llama3"], "low_freq_factor": 4.0}
    with pytest.raises(
        UserError, match=r"high_freq_factor is 4\.0; expected more than low_freq_factor, 4\.0"
    ):
        RopeConfig.from_hf({**BASE, "rope_scaling": settings}, 8, None)


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("finetuned", True, "yes"), ("extrapolation_factor", 1.0, 2.0), ("attn_factor", 1, 0.5)],
)
def test_legacy_rope_keys_are_read_where_they_say_nothing(key, value, other):
    settings = {"type": "yarn", **SCALINGS["yarn"]}
    rope = RopeConfig.from_hf({**BASE, "rope_scaling": {**settings, key: value}}, 8, None)
    assert rope == RopeConfig.from_hf({**BASE, "rope_scaling": settings}, 8, None)
    with pytest.raises(UserError, match=key):
        RopeConfig.from_hf({**BASE, "rope_scaling": {**settings, key: other}}, 8, None)


def test_every_rope_setting_is_in_the_schema():
    assert {key for settings in SCALINGS.values() for key in settings} < set(RopeValues.model_fields)


def test_a_number_that_json_cannot_hold_is_one_line():
    values = json.loads(json.dumps({**BASE, "rms_norm_eps": math.nan}))
    with pytest.raises(UserError, match="rms_norm_eps is nan"):
        DecoderConfig.from_hf(values)
