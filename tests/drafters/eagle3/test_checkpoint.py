"""Heads of every layout, written with random weights; then each kind of breakage and its one-line message."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import head_files
from support.head_files import CONFIG, MODELOPT_KEYS, TEACHER

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.errors import UserError


def _parts(**options):
    """A SpecForge head: its config and its weights, to be broken."""
    config = {**CONFIG, **options}
    return config, {**head_files.tensors(config), **head_files.vocabulary(config)}


def _message(directory, teacher=TEACHER, **asked):
    with pytest.raises(UserError) as caught:
        load_head(directory, teacher=teacher, **asked)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _eagle(**keys):
    return {**MODELOPT_KEYS, **keys}


LAYOUTS = {
    # name: config, weights, format, what the HeadConfig must say
    "safeailab": (
        {k: v for k, v in CONFIG.items() if k not in ("head_dim", "rope_theta")}
        | {"architectures": ["LlamaForCausalLM"]},
        {"extra": ("embed_tokens",)},
        "SafeAILab",
        {"own_embedding": True, "taps": (2, 5, 7), "head_dim": 8},
    ),
    "specforge": (
        {**CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}},
        {},
        "SpecForge",
        {"own_embedding": False, "taps": (2, 5, 7)},
    ),
    "specforge 3.1": (
        {**CONFIG, "fc_norm": True, "norm_output": True},
        {"extra": ("fc_norm", "embed_tokens")},
        "SpecForge",
        {"fc_norm": True, "norm_output": True},
    ),
    "angelslim": (
        {**CONFIG, "architectures": ["Eagle3LlamaForCausalLM"], "tie_word_embeddings": True},
        {"extra": ("embed_tokens",)},
        "AngelSlim",
        {"shares_lm_head": False, "draft_vocab_size": 16},
    ),
    "vicuna style": (
        {**CONFIG, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40},
        {},
        "SafeAILab",
        {"num_layers": 1},
    ),
    "speculators": (
        head_files.speculators_config(
            CONFIG, norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[2, 5, 7]
        ),
        {"layer": "layers.0.", "extra": ("embed_tokens",)},
        "speculators",
        {"norm_before_residual": True, "taps": (2, 5, 7), "norm_before_fc": False},
    ),
    "speculators gpt-oss": (
        head_files.speculators_config(CONFIG, norm_before_fc=True, norm_output=True),
        {"layer": "layers.0.", "extra": ("input_norm",)},
        "speculators",
        {"norm_before_fc": True, "norm_output": True},
    ),
    "speculators qwen3, two layers": (
        head_files.speculators_config(
            {**CONFIG, "model_type": "qwen3", "num_hidden_layers": 2, "attention_bias": True}
        ),
        {"layer": "layers.0.", "extra": ("qk_norm",), "biases": ("q_proj", "k_proj", "v_proj", "o_proj")},
        "speculators",
        {"qk_norm": True, "num_layers": 2, "qkv_bias": True, "o_bias": True},
    ),
    "modelopt": (
        {
            **CONFIG,
            "rope_theta": None,
            "rope_scaling": {"rope_type": "default", "rope_theta": 500000.0},
            "attention_bias": False,
            "mlp_bias": False,
            "eagle_config": _eagle(eagle_aux_hidden_state_layer_ids=[1, 4, 6]),
        },
        {"layer": "layers.0."},
        "Model-Optimizer",
        {"taps": (2, 5, 7)},
    ),
    "modelopt deep": (
        {
            **CONFIG,
            "architectures": ["LlamaForCausalLMEagle3Deep"],
            "num_hidden_layers": 2,
            "bias": True,
            "mlp_bias": True,
            "eagle_config": _eagle(
                eagle_aux_hidden_state_layer_ids=[1, 4, 6], norm_before_fc=True, return_hidden_post_norm=True
            ),
        },
        {
            "layer": "midlayer.0.",
            "extra": ("input_norm",),
            "biases": ("fc", "gate_proj", "up_proj", "down_proj"),
        },
        "Model-Optimizer",
        {"num_layers": 2, "norm_before_fc": True, "norm_output": True, "fc_bias": True, "mlp_bias": True},
    ),
}


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout_loads(tmp_path, case, prefix, pickled):
    config, recipe, layout, said = LAYOUTS[case]
    shape = {**config.get("transformer_layer_config", {}), **config}
    weights = head_files.tensors(
        {**CONFIG, **shape, "num_hidden_layers": said.get("num_layers", 1)}, **recipe
    )
    if case == "modelopt deep":
        weights["midlayer.1.hidden_norm.weight"] = weights.pop("layers.1.input_layernorm.weight")
        weights = {name.replace("layers.1.", "midlayer.1."): value for name, value in weights.items()}
    vocabulary = head_files.vocabulary(CONFIG, ascending="modelopt" not in case)
    if "modelopt" in case:
        del vocabulary["t2d"]
    stored = {(name if name == "lm_head.weight" else prefix + name): value for name, value in weights.items()}
    head = load_head(
        head_files.write(tmp_path, config, {**stored, **vocabulary}, pickled=pickled), teacher=TEACHER
    )
    assert head.config.format == layout
    for key, value in said.items():
        assert getattr(head.config, key) == value, key
    assert {name: a.shape for name, a in head.tensors.items()} == head.config.tensor_shapes()
    assert all(a.dtype == np.float32 for a in head.tensors.values())
    assert len(head.tensors) == len(weights)
    q_names = ("0.self_attn.q_proj.weight", "midlayer.self_attn.q_proj.weight")
    first = next(name for name in weights if name.endswith(q_names))
    assert np.array_equal(head.tensors["layers.0.attention.q_proj.weight"], weights[first])
    assert np.array_equal(head.tensors["norm.weight"], weights["norm.weight"])
    assert head.d2t.dtype == np.int32
    assert np.array_equal(head.d2t, np.arange(16) + vocabulary["d2t"])


def test_later_layers_norm_is_read_under_both_names(tmp_path):
    config = head_files.speculators_config({**CONFIG, "num_hidden_layers": 2})
    weights = head_files.tensors({**CONFIG, "num_hidden_layers": 2}, layer="layers.0.")
    norm = weights.pop("layers.1.input_layernorm.weight")
    path = head_files.write(
        tmp_path, config, {**weights, **head_files.vocabulary(CONFIG), "layers.1.hidden_norm.weight": norm}
    )
    head = load_head(path, teacher=TEACHER)
    assert np.array_equal(head.tensors["layers.1.input_norm.weight"], norm)
    assert "layers.1.hidden_norm.weight" not in head.tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pickled", [False, True])
def test_half_precision_becomes_float32_exactly(tmp_path, dtype, pickled):
    config, weights = _parts()
    path = head_files.write(tmp_path, config, weights)
    half = {
        name: torch.from_numpy(w).to(dtype) if w.dtype == np.float32 else torch.from_numpy(w)
        for name, w in weights.items()
    }
    (path / "model.safetensors").unlink()
    if pickled:
        torch.save(half, path / "pytorch_model.bin")
    else:
        save_file(half, path / "model.safetensors")
    head = load_head(path, teacher=TEACHER)
    assert head.tensors["fc.weight"].dtype == np.float32
    assert np.array_equal(head.tensors["fc.weight"], half["fc.weight"].float().numpy())


def test_safetensors_win_over_a_pickle(tmp_path):
    config, weights = _parts()
    path = head_files.write(tmp_path, config, weights)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n.")
    head = load_head(path, teacher=TEACHER)
    assert set(head.hashes) == {"config.json", "model.safetensors"}
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    assert head.hashes["model.safetensors"] == digest


def test_a_hostile_pickle_is_refused(tmp_path):
    config, weights = _parts()
    path = head_files.write(tmp_path, config, weights)
    (path / "model.safetensors").unlink()

    class Hostile:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"fc.weight": Hostile()}, path / "pytorch_model.bin")
    assert "print" in _message(path)


def test_a_full_vocabulary_needs_no_map(tmp_path):
    config, weights = _parts(draft_vocab_size=40)
    for name in ("d2t", "t2d"):
        del weights[name]
    head = load_head(head_files.write(tmp_path / "a", config, weights), teacher=TEACHER)
    assert head.d2t is None
    # SpecForge always stores both: no offsets and a mask of ones
    weights |= {"d2t": np.zeros(40, np.int64), "t2d": np.ones(40, bool)}
    assert load_head(head_files.write(tmp_path / "b", config, weights), teacher=TEACHER).d2t is None
    del config["draft_vocab_size"], weights["lm_head.weight"]
    head = load_head(head_files.write(tmp_path / "c", config, weights), teacher=TEACHER)
    assert head.config.shares_lm_head
    assert head.config.draft_vocab_size == 40
    assert "lm_head.weight" not in head.tensors


def test_a_tied_lm_head_is_the_heads_embedding(tmp_path):
    config, weights = _parts(draft_vocab_size=40, tie_word_embeddings=True)
    for name in ("d2t", "t2d", "lm_head.weight"):
        del weights[name]
    weights["embed_tokens.weight"] = np.full((40, 24), 0.5, np.float32)
    head = load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER)
    assert not head.config.shares_lm_head
    assert np.array_equal(head.tensors["lm_head.weight"], head.tensors["embed.weight"])


def test_a_head_narrower_than_its_teacher(tmp_path):
    config = {**CONFIG, "target_hidden_size": 32}
    weights = {**head_files.tensors(config, extra=("embed_tokens",)), **head_files.vocabulary(config)}
    teacher = SimpleNamespace(hidden_size=32, vocab_size=40, num_layers=10)
    head = load_head(head_files.write(tmp_path / "a", config, weights), teacher=teacher)
    assert head.config.hidden_size == 24
    assert head.config.target_hidden_size == 32
    assert head.tensors["fc.weight"].shape == (24, 96)
    assert "width 32, this teacher has 24" in _message(tmp_path / "a")
    del weights["embed_tokens.weight"]
    assert "no embed_tokens.weight" in _message(head_files.write(tmp_path / "b", config, weights), teacher)


def test_taps_and_rope_as_asked(tmp_path):
    config, weights = _parts(
        rope_theta=1e6, eagle_config={"eagle_aux_hidden_state_layer_ids": [99, 100, 101]}
    )
    path = head_files.write(tmp_path, config, weights)
    assert "blocks 0 to 9" in _message(path)
    head = load_head(path, teacher=TEACHER, taps=(0, 4, 9), rope_theta=10000.0)
    assert head.config.taps == (0, 4, 9)
    assert head.config.rope.theta == 10000.0
    assert sum("as asked" in note for note in head.config.notes) == 2


def test_extra_taps(tmp_path):
    config = {**CONFIG, "num_aux_hidden_states": 2, "eagle_aux_hidden_state_layer_ids": [3, 8]}
    weights = {**head_files.tensors(config), **head_files.vocabulary(config)}
    assert load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER).config.taps == (3, 8)


# --- breakages ---


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"architectures": ["MedusaModel"]}, "'MedusaModel'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}}, "'mrope_section'"),
        ({"rope_scaling": 8}, "rope scaling is 8"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "do not divide over 3 KV heads"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"intermediate_size": 35}, "mlp.gate_proj.weight [36, 24] (expected [35, 24])"),
        ({"head_dim": 6}, "q_proj.weight [32, 48] (expected [24, 48])"),
        ({"num_key_value_heads": 4}, "k_proj.weight [16, 48] (expected [32, 48])"),
        ({"draft_vocab_size": 41}, "draft_vocab_size 41"),
        ({"draft_vocab_size": 17}, "lm_head.weight [16, 24] (expected [17, 24])"),
        ({"truncated_vocab_size": 17}, "[16, 17]"),
        ({"vocab_size": 41}, "a vocabulary of 41, this teacher has 40"),
        ({"hidden_size": 12}, "width 12, this teacher has 24"),
        ({"target_hidden_size": 12}, "width 12, this teacher has 24"),
        ({"fc_norm": True}, "3 missing tensors in the head: fc_norm.0.weight"),
        ({"norm_before_fc": True}, "1 missing tensor in the head: input_norm.weight"),
        ({"norm_before_fc": True, "fc_norm": True}, "fc_norm and norm_before_fc"),
        ({"norm_output": "yes"}, "norm_output is 'yes'"),
        ({"mlp_bias": True}, "mlp.gate_proj.bias"),
        ({"qkv_bias": True}, "q_proj.bias"),
        ({"num_aux_hidden_states": 5}, "num_aux_hidden_states is 5, but fc.weight takes 3"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5]}, "fc.weight takes 3"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5, 5]}, "repeated"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5, 10]}, "blocks 0 to 9"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5, 9]}}, "taps 3, 6, 10"),
        ({"surprise": 3}, "'surprise'"),
    ],
)
def test_configs_that_do_not_fit(tmp_path, options, found):
    config, weights = _parts()
    assert found in _message(head_files.write(tmp_path, {**config, **options}, weights))


def _drop(*names):
    return lambda w: [w.pop(name) for name in names]


def _put(**values):
    return lambda w: w.update({name.replace("__", "."): value for name, value in values.items()})


def _edit(name, index, value):
    def change(weights):
        weights[name] = weights[name].copy()
        weights[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_drop("midlayer.hidden_norm.weight"), "1 missing tensor in the head: layers.0.hidden_norm.weight"),
        (_drop("norm.weight"), "norm.weight"),
        (_drop("midlayer.self_attn.v_proj.weight"), "layers.0.attention.v_proj.weight"),
        (_drop("fc.weight"), "no fc.weight"),
        (_drop("lm_head.weight"), "no lm_head.weight"),
        (_drop("d2t"), "no d2t"),
        (_put(extra__weight=np.zeros(3, np.float32)), "1 unexpected tensor in the head: extra.weight"),
        (_put(midlayer__self_attn__q_proj__lora=np.zeros(3, np.float32)), "midlayer.self_attn.q_proj.lora"),
        (_put(layers__2__mlp__up_proj__weight=np.zeros((36, 24), np.float32)), "tensors for 3"),
        (_put(midlayer__self_attn__q_proj__bias=np.zeros(32, np.float32)), "k_proj.bias"),
        (_put(layers__0__mlp__up_proj__weight=np.zeros((36, 24), np.float32)), "are the same tensor"),
        (_put(mask_hidden=np.zeros((1, 1, 72), np.float32)), "mask_hidden"),
        (_put(fc__weight_scale=np.zeros(1, np.float32)), "fc.weight_scale"),
        (_put(norm__weight=np.zeros(25, np.float32)), "norm.weight [25] (expected [24])"),
        (_put(fc__weight=np.zeros((24, 70), np.float32)), "fc.weight is mis-shaped: [24, 70]"),
        (_put(fc__weight=np.zeros(24, np.float32)), "fc.weight is mis-shaped: [24]"),
        (_put(lm_head__weight=np.zeros(7, np.float32)), "lm_head.weight [7] (expected [16, 24])"),
        (_put(midlayer__self_attn__q_proj__weight=np.zeros((32, 24), np.float32)), "EAGLE-1"),
        (_put(norm__weight=np.zeros(24, np.int8)), "norm.weight has dtype I8"),
        (_edit("fc.weight", (0, 0), np.nan), "fc.weight holds 1 values that are NaN or infinite"),
        (_edit("midlayer.mlp.up_proj.weight", (slice(0, 2), 0), np.inf), "up_proj.weight holds 2 values"),
        (_put(d2t=np.zeros(15, np.int64)), "d2t is int64 of shape [15]; expected integers of [16]"),
        (_put(d2t=np.zeros((16, 1), np.int64)), "d2t is int64 of shape [16, 1]"),
        (_put(d2t=np.zeros(16, np.float32)), "'d2t' has dtype F32"),
        (_put(d2t=np.zeros(16, bool)), "d2t is bool"),
        (_edit("d2t", 3, 37), "draft id 3 to target id 40, outside the vocabulary of 40"),
        (_edit("d2t", 3, -4), "draft id 3 to target id -1"),
        (_put(t2d=np.zeros(39, bool)), "t2d has shape [39]; expected [40]"),
        (_put(t2d=np.full(40, 2, np.uint8)), "t2d holds values other than 0 and 1"),
        (_put(t2d=np.ones(40, bool)), "contradict each other over 24 target ids"),
    ],
)
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_weights_that_do_not_fit(tmp_path, change, found, pickled):
    config, weights = _parts()
    change(weights)
    assert found in _message(head_files.write(tmp_path, config, weights, pickled=pickled))


@pytest.mark.parametrize(
    ("layout", "options", "recipe", "found"),
    [
        ("speculators", {"attention_bias": True}, {}, "layers.0.attention.q_proj.bias"),
        (
            "speculators",
            {"attention_bias": False},
            {"biases": ("q_proj", "k_proj", "v_proj")},
            "attention_bias is false",
        ),
        ("speculators", {"model_type": "qwen3"}, {}, "layers.0.attention.q_norm.weight"),
        (
            "speculators",
            {"num_hidden_layers": 2},
            {"count": 1},
            "num_hidden_layers is 2, but the head has tensors for 1",
        ),
        ("modelopt", {"bias": True}, {}, "fc.bias"),
        ("modelopt", {"bias": False}, {"biases": ("fc",)}, "bias is false"),
    ],
)
def test_options_that_contradict_the_tensors(tmp_path, layout, options, recipe, found):
    config = {**CONFIG, **options}
    count = recipe.pop("count", config["num_hidden_layers"])
    weights = head_files.tensors({**config, "num_hidden_layers": count}, layer="layers.0.", **recipe)
    if layout == "speculators":
        config = head_files.speculators_config(config)
    else:
        config["eagle_config"] = MODELOPT_KEYS
    assert found in _message(head_files.write(tmp_path, config, {**weights, **head_files.vocabulary(CONFIG)}))


def test_files_that_are_not_there(tmp_path):
    config, weights = _parts()
    assert "config.json" in _message(tmp_path / "absent")
    path = head_files.write(tmp_path / "a", config, weights)
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw[:-8])
    assert "truncated" in _message(path)
    (path / "model.safetensors").unlink()
    assert "no weights of a head; expected model.safetensors or pytorch_model.bin" in _message(path)
    (path / "config.json").write_text("{")
    assert "not valid JSON" in _message(path)


def test_a_small_teacher_needs_explicit_taps(tmp_path):
    config, weights = _parts()
    path = head_files.write(tmp_path, config, weights)
    teacher = SimpleNamespace(hidden_size=24, vocab_size=40, num_layers=4)
    assert "no default for a teacher of 4 layers" in _message(path, teacher)
    assert load_head(path, teacher=teacher, taps=(0, 1, 3)).config.taps == (0, 1, 3)


# --- notes ---


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"rope_theta": None}, "no rope_theta: 10000"),
        ({"rope_theta": 1e6}, "rotated with 10000 whatever it said"),
        ({"rms_norm_eps": None}, "no rms_norm_eps"),
        ({"num_hidden_layers": 24}, "num_hidden_layers 24"),
        ({"attention_bias": True}, "attention_bias"),
        ({"norm_output": True}, "set drafter.norm_output=false"),
        ({"norm_output": False}, "set drafter.raw_logits=true"),
    ],
)
def test_notes(tmp_path, options, noted):
    config, weights = _parts()
    head = load_head(head_files.write(tmp_path, {**config, **options}, weights), teacher=TEACHER)
    sentences = (*head.config.notes, *head.config.doubts)
    assert any(noted in sentence for sentence in sentences), sentences


def test_a_head_with_nothing_to_say_has_no_notes(tmp_path):
    config = head_files.speculators_config(CONFIG, eagle_aux_hidden_state_layer_ids=[2, 5, 7])
    weights = {**head_files.tensors(CONFIG, layer="layers.0."), **head_files.vocabulary(CONFIG)}
    path = head_files.write(tmp_path, config, weights)
    quiet = load_head(path, teacher=TEACHER).config
    assert (quiet.notes, quiet.doubts) == ((), ())
    del config["norm_before_residual"]
    path = head_files.write(tmp_path, config, weights)
    (doubt,) = load_head(path, teacher=TEACHER).config.doubts
    assert "drafter.norm_before_residual=true" in doubt
    settled = load_head(path, teacher=TEACHER, variants={"norm_before_residual": True}).config
    assert (settled.norm_before_residual, settled.doubts) == (True, ())
    assert "used as asked" in settled.notes[0]


@pytest.mark.parametrize("place", ["rope_theta", "rope_parameters", "rope_scaling"])
def test_rope_stands_in_three_places(tmp_path, place):
    config, weights = _parts(rope_theta=None)
    config[place] = 5e5 if place == "rope_theta" else {"rope_type": "default", "rope_theta": 5e5}
    head = load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER)
    assert head.config.rope.theta == 5e5
    assert not any("no rope_theta" in note for note in head.config.notes)
    assert load_head(tmp_path, teacher=TEACHER, rope_theta=7.0).config.rope.theta == 7.0


def test_rope_scaling_is_kept(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config, weights = _parts(rope_theta=5e5, rope_scaling=scaling)
    rope = load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER).config.rope
    assert (rope.scaling, rope.theta, rope.parameters["factor"]) == ("llama3", 5e5, 8.0)
