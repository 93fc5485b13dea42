"""Directories that describe openPangu-Embedded 1B and 7B: config.json and a toy tokenizer, no weights."""

import json
from pathlib import Path

from support import toy_tokenizers

_COMMON = {
    "architectures": ["PanguEmbeddedForCausalLM"],
    "model_type": "PanguEmbedded",
    "bias": True,
    "hidden_act": "silu",
    "vocab_size": 153376,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 45892,
    "pad_token_id": 0,
}
SHAPES = {
    "1b": dict(
        num_hidden_layers=26,
        hidden_size=1536,
        intermediate_size=6144,
        num_attention_heads=12,
        num_key_value_heads=6,
        rope_theta=4e6,
        tie_word_embeddings=True,
    ),
    "7b": dict(
        num_hidden_layers=34,
        hidden_size=4096,
        intermediate_size=12800,
        num_attention_heads=32,
        num_key_value_heads=8,
        rope_theta=16e6,
        tie_word_embeddings=False,
    ),
}


def directory(name: str, parent: Path) -> Path:
    """A directory for ``--random-weights``."""
    made = parent / f"pangu-{name}"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({**_COMMON, **SHAPES[name]}))
    return toy_tokenizers.write_sentencepiece(
        made, {"tokenizer_class": "PanguTokenizer", "bos_token": "<s>", "eos_token": "[unused10]"}
    )
