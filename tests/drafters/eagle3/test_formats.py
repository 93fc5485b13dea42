import pytest
from support.head_files import CONFIG, MODELOPT_KEYS, speculators_config

from ms_eagle.drafters.eagle3 import formats as head_formats
from ms_eagle.errors import UserError


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "SafeAILab"),
        ({}, "SafeAILab"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "SpecForge"),
        (
            {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"use_aux_hidden_state": True}},
            "SpecForge",
        ),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "AngelSlim"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": MODELOPT_KEYS}, "Model-Optimizer"),
        ({"architectures": ["EAGLE3LlamaForCausalLM"]}, "Model-Optimizer"),
        ({"architectures": ["LlamaForCausalLMEagle3Deep"]}, "Model-Optimizer"),
        (speculators_config(CONFIG), "speculators"),
    ],
)
def test_recognises_the_layout(config, name):
    assert head_formats.recognise(config).name == name


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"architectures": ["MedusaModel"]}, "MedusaModel"),
        ({"architectures": ["PEagleDraftModel"]}, "PEagleDraftModel"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "LlamaForCausalLMEagle"),
        ({"architectures": ["DFlashDraftModel"]}, "DFlashDraftModel"),
        ({"speculators_model_type": "peagle"}, "peagle"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"eagle_config": [1, 15, 28]}, "eagle_config"),
    ],
)
def test_other_draft_models_are_refused_by_name(config, found):
    with pytest.raises(UserError, match=found):
        head_formats.recognise(config)


def test_flatten_brings_three_levels_to_one():
    flat = head_formats.flatten(speculators_config(CONFIG, norm_before_fc=True))
    assert flat["hidden_size"] == 24
    assert flat["norm_before_fc"] is True
    assert "target_hidden_size" not in flat  # null says nothing
    assert set(flat) <= head_formats.MAPPED
    nested = {**CONFIG, "eagle_config": {**MODELOPT_KEYS, "norm_before_fc": True}}
    assert head_formats.flatten(nested)["norm_before_fc"] is True


def test_real_world_bookkeeping_is_accepted():
    config = {
        **CONFIG,
        "attention_dropout": 0.0,
        "max_window_layers": 36,
        "sliding_window": 512,
        "use_sliding_window": False,
        "image_token_id": 151655,
        "vision_start_token_id": 151652,
        "im_start_id": 4,
        "modal_type": "VLM",
        "use_qk_norm": True,
        "num_experts": 128,
        "router_aux_loss_coef": 0.001,
        "layer_types": ["full_attention"],
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
        "some_future_switch": False,
    }
    assert head_formats.flatten(config) == head_formats.flatten(CONFIG)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("layer_types", ["sliding_attention"]),
        ("layer_types", "full_attention"),
        ("quantization_config", {"quant_method": "fp8"}),
        ("compression_config", {"x": 1}),
        ("partial_rotary_factor", 0.5),
        ("logit_scale", 0.25),
        ("is_causal", False),
        ("position_embedding_type", "alibi"),
        ("use_mrope", True),
        ("norm_type", "layer"),
        ("parallel_drafting", True),
        ("ptd_token_id", 5),
        ("mask_token_id", 0),
        ("num_depths", 8),
        ("medusa_num_heads", 3),
        ("kv_lora_rank", 512),
        ("some_future_switch", True),
        ("use_aux_hidden_state", "yes"),
        ("hidden_act", True),
    ],
)
def test_an_option_not_implemented_is_refused_by_name(option, value):
    with pytest.raises(UserError, match=option) as caught:
        head_formats.flatten({**CONFIG, option: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_aux_hidden_state", False),
        ("use_input_layernorm_in_first_layer", False),
        ("use_last_layernorm", False),
        ("next_layer_regular", False),
        ("use_mtp_layernorm", True),
        ("parallel_draft_step", 4),
        ("eh_proj_before_attn", True),
        ("unheard_of", 1),
    ],
)
def test_nested_options_are_refused_by_name(option, value):
    with pytest.raises(UserError, match=option):
        head_formats.flatten({**CONFIG, "eagle_config": {**MODELOPT_KEYS, option: value}})
    layer = {**CONFIG, option: value}
    with pytest.raises(UserError, match=option):
        head_formats.flatten(speculators_config(layer))


def test_one_option_with_two_values_is_refused():
    with pytest.raises(UserError, match="norm_before_fc is given twice, as False and as True"):
        head_formats.flatten({**CONFIG, "norm_before_fc": True, "eagle_config": {"norm_before_fc": False}})
    with pytest.raises(UserError, match="algorithm is 'mtp'"):
        head_formats.flatten({**CONFIG, "speculators_config": {"algorithm": "mtp"}})
    with pytest.raises(UserError, match="transformer_layer_config is 3"):
        head_formats.flatten({"transformer_layer_config": 3})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.attention.q_proj.weight"),
        ("layers.0.self_attn.q_proj.weight", "layers.0.attention.q_proj.weight"),
        ("model.layers.0.self_attn.k_proj.bias", "layers.0.attention.k_proj.bias"),
        ("midlayer.0.self_attn.o_proj.weight", "layers.0.attention.o_proj.weight"),
        ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("midlayer.input_layernorm.weight", "layers.0.input_norm.weight"),
        ("layers.1.input_layernorm.weight", "layers.1.input_norm.weight"),
        ("midlayer.1.hidden_norm.weight", "layers.1.input_norm.weight"),
        ("layers.2.post_attention_layernorm.weight", "layers.2.post_attention_norm.weight"),
        ("midlayer.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight"),
        ("layers.0.self_attn.q_norm.weight", "layers.0.attention.q_norm.weight"),
        ("embed_tokens.weight", "embed.weight"),
        ("model.embed_tokens.weight", "embed.weight"),
        ("model.fc_norm.2.weight", "fc_norm.2.weight"),
        ("fc.bias", "fc.bias"),
        ("d2t", "d2t"),
        ("model.norm.weight", "norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("midlayer.self_attn.rotary_emb.inv_freq", None),
        ("rotary_emb.inv_freq", None),
        ("verifier_lm_head.weight", None),
        ("something.else", "something.else"),
        ("layers.self_attn.q_proj.weight", "layers.self_attn.q_proj.weight"),
        ("midlayer.self_attn.qkv_proj.weight", "midlayer.self_attn.qkv_proj.weight"),
    ],
)
def test_canonical_names(theirs, ours):
    assert head_formats.canonical_name(theirs) == ours


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mask_hidden", "P-EAGLE"),
        ("parallel_draft_heads.0.medusa_layers.0.linear.weight", "parallel"),
        ("layers.0.self_attn.kv_a_proj_with_mqa.weight", "MLA"),
        ("layers.0.self_attn.q_proj.weight_scale", "quantised"),
        ("layers.0.mlp.up_proj.weight_packed", "quantised"),
        ("enorm.weight", "not to EAGLE-3"),
    ],
)
def test_tensors_of_other_things_are_refused_by_name(name, why):
    with pytest.raises(UserError, match=why) as caught:
        head_formats.canonical_name(name)
    assert name in str(caught.value)


def test_numbered_layers():
    assert head_formats.numbers_layers("layers.0.mlp.up_proj.weight")
    assert head_formats.numbers_layers("model.midlayer.1.hidden_norm.weight")
    assert not head_formats.numbers_layers("midlayer.mlp.up_proj.weight")
    assert not head_formats.numbers_layers("fc_norm.0.weight")
