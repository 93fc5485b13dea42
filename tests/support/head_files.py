"""Directories of random EAGLE-3 heads in every published layout, for tests."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.numpy import save_file
from support.heads import random_tensors

TEACHER = SimpleNamespace(hidden_size=24, vocab_size=40, num_layers=10)

# A small head with a head_dim unlike hidden / heads and grouped KV heads.
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "draft_vocab_size": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "torch_dtype": "float32",
}
MODELOPT_KEYS = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
}


def tensors(config: dict, *, layer="midlayer.", seed=0, biases=(), extra=()) -> dict[str, np.ndarray]:
    """Random weights for a config; `layer` is the prefix of layer 0, later ones are ``layers.N.``.

    Args:
        biases: projections that get a bias, such as ``"q_proj"``.
        extra: further tensors by name: ``embed_tokens``, ``fc_norm``, ``input_norm``, ``qk_norm``.
    """
    random = np.random.default_rng(seed)
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    target = config.get("target_hidden_size") or hidden
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    count = config.get("num_aux_hidden_states", 3)
    shapes = {"fc.weight": (hidden, count * target), "norm.weight": (hidden,)}
    shapes["lm_head.weight"] = (config.get("draft_vocab_size") or config["vocab_size"], hidden)
    if "fc" in biases:
        shapes["fc.bias"] = (hidden,)
    if "embed_tokens" in extra:
        shapes["embed_tokens.weight"] = (config["vocab_size"], hidden)
    if "fc_norm" in extra:
        shapes |= {f"fc_norm.{i}.weight": (target,) for i in range(count)}
    if "input_norm" in extra:
        shapes["input_norm.weight"] = (count * target,)
    for number in range(config["num_hidden_layers"]):
        prefix = layer if number == 0 else f"layers.{number}."
        wide = 2 * hidden if number == 0 else hidden
        for name, rows, columns in (
            ("self_attn.q_proj", q, wide),
            ("self_attn.k_proj", kv, wide),
            ("self_attn.v_proj", kv, wide),
            ("self_attn.o_proj", hidden, q),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if name.split(".")[1] in biases:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        if number == 0:
            shapes[f"{prefix}hidden_norm.weight"] = (hidden,)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if "qk_norm" in extra:
            shapes |= {f"{prefix}self_attn.{p}_norm.weight": (d,) for p in "qk"}
    return random_tensors(shapes, random)


def vocabulary(config: dict, *, seed=0, ascending=True) -> dict[str, np.ndarray]:
    """``d2t`` and ``t2d`` for a random draft vocabulary."""
    draft, vocab = config["draft_vocab_size"], config["vocab_size"]
    ids = np.random.default_rng(seed).permutation(vocab)[:draft]
    ids = np.sort(ids) if ascending else ids
    return {"d2t": ids - np.arange(draft), "t2d": np.isin(np.arange(vocab), ids)}


def write(directory: Path, config: dict, weights: dict[str, np.ndarray], *, pickled=False) -> Path:
    """Write a head's directory and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(
            {name: torch.from_numpy(w.copy()) for name, w in weights.items()}, directory / "pytorch_model.bin"
        )
    else:
        save_file(
            {name: np.ascontiguousarray(w) for name, w in weights.items()}, directory / "model.safetensors"
        )
    return directory


def speculators_config(config: dict, **options) -> dict:
    """The same head as speculators describes it."""
    layer = {
        k: v
        for k, v in config.items()
        if k not in ("architectures", "draft_vocab_size", "target_hidden_size")
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": False,
        "target_hidden_size": None,
        "embed_requires_grad": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/teacher"},
        },
        **options,
    }
