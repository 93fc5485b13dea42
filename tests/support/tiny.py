"""Tiny random checkpoints of every supported architecture, made with transformers and torch."""

import json
from pathlib import Path

import torch
import transformers

from ms_eagle.models.weight import Weight

SIZES = dict(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
MSCALE_YARN_ROPE = dict(
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=32,
    beta_fast=16.0,
    beta_slow=2.0,
    mscale=1.0,
    mscale_all_dim=0.5,
    truncate=False,
)

# name: (transformers model class, its config class, settings over SIZES)
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "llama_tied": ("LlamaForCausalLM", "LlamaConfig", dict(tie_word_embeddings=True)),
    "llama_one_kv_head": ("LlamaForCausalLM", "LlamaConfig", dict(num_key_value_heads=1)),
    "llama_mlp_bias": ("LlamaForCausalLM", "LlamaConfig", dict(mlp_bias=True)),
    "llama_linear": (
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(rope_scaling=dict(rope_type="linear", factor=2.5)),
    ),
    "llama_llama3": (
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(rope_scaling=LLAMA3_ROPE, rope_theta=500000.0, head_dim=16),
    ),
    "llama_yarn": ("LlamaForCausalLM", "LlamaConfig", dict(rope_scaling=YARN_ROPE, head_dim=16)),
    "llama_yarn_mscale": (
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(rope_scaling=MSCALE_YARN_ROPE, head_dim=32),
    ),
    "openpangu": ("LlamaForCausalLM", "LlamaConfig", dict(attention_bias=True, rope_theta=4e6)),
    "openpangu_tied": (
        "LlamaForCausalLM",
        "LlamaConfig",
        dict(attention_bias=True, rope_theta=4e6, tie_word_embeddings=True),
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen2_tied": ("Qwen2ForCausalLM", "Qwen2Config", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(head_dim=16)),
    "qwen3_tied": ("Qwen3ForCausalLM", "Qwen3Config", dict(head_dim=16, tie_word_embeddings=True)),
}


def make(name: str, seed: int = 0, **settings) -> transformers.PreTrainedModel:
    """A random float32 model in evaluation mode; weights large enough that logits differ clearly."""
    model_class, config_class, own = ARCHITECTURES[name]
    config = getattr(transformers, config_class)(
        **{**SIZES, **own, **settings}, attn_implementation="eager", initializer_range=0.2
    )
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                value.normal_(0.0, 0.2)
            elif "norm" in key:
                value.uniform_(0.5, 1.5)
    return model


def weights(model: transformers.PreTrainedModel) -> dict[str, Weight]:
    """The tensors of its checkpoint."""
    return {key: Weight.of(value.detach().numpy()) for key, value in model.state_dict().items()}


def save(name: str, directory: Path, seed: int = 0, **settings) -> transformers.PreTrainedModel:
    """Make a model and write it to ``directory`` as published ones are; return it."""
    model = make(name, seed, **settings)
    model.save_pretrained(directory)
    if name.startswith("openpangu"):
        # Published as an architecture of its own: the same weights, one key named otherwise.
        path = directory / "config.json"
        config = json.loads(path.read_text())
        config["architectures"], config["model_type"] = ["PanguEmbeddedForCausalLM"], "PanguEmbedded"
        config["bias"] = config.pop("attention_bias")
        path.write_text(json.dumps(config))
    return model
