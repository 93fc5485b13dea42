"""Weights to start from: the teacher's own where shapes allow, small random numbers elsewhere."""

from collections.abc import Callable

import numpy as np

from ms_eagle.checkpoints.random_weights import random_tensor
from ms_eagle.drafters.eagle3.config import HeadConfig

_SCALE = 0.02
_FEATURE_RMS = 5.0  # of the residual stream at the start: small enough for steps of ordinary size to turn it


def random_start(config: HeadConfig, seed: int) -> dict[str, np.ndarray]:
    """Normal matrices of standard deviation 0.02 and norms of 1, float32, for every tensor of the head."""
    rng = np.random.default_rng(seed)
    return {
        name: random_tensor(name, shape, rng, scale=_SCALE, draws=np.float64)
        for name, shape in config.tensor_shapes().items()
    }


def teacher_start(
    config: HeadConfig,
    seed: int,
    read: Callable[[str], np.ndarray],
    layers: int,
    lm_head_rows: np.ndarray,
    tap_rms: float,
) -> dict[str, np.ndarray]:
    """Begin as a continuation of the teacher.

    ``fc`` hands the last tap through; the head's layers are the teacher's last blocks, the first of them
    reading the embedding through small random numbers; the final norm and the LM head's rows are the
    teacher's. The residual stream is the teacher's scaled down to an RMS of 5: norms do not see the
    difference, the optimiser does. Tensors of other shapes than the head's stay random.

    Args:
        config: of the head.
        seed: of what stays random.
        read: a tensor of the teacher by its Hugging Face name.
        layers: how many blocks the teacher has.
        lm_head_rows: the teacher's rows of the draft vocabulary, ``[V_d, E]``.
        tap_rms: root mean square of the last tap, over some tokens.
    """
    tensors = random_start(config, seed)

    def take(name: str, value: np.ndarray) -> None:
        if tensors[name].shape == value.shape:
            tensors[name] = np.array(value, np.float32)

    hidden, quieter = config.hidden_size, np.float32(_FEATURE_RMS / tap_rms)
    if config.hidden_size == config.target_hidden_size:
        through = np.float32(_FEATURE_RMS) if config.fc_norm else quieter
        tensors["fc.weight"][:, (config.num_taps - 1) * hidden :] = through * np.eye(hidden, dtype=np.float32)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layers - config.num_layers + layer}."
        for part in "qkv":
            weight = np.array(read(f"{theirs}self_attn.{part}_proj.weight"), np.float32)
            if layer == 0:
                weight = np.concatenate([np.zeros_like(weight), weight], 1)
                random = tensors[f"{ours}attention.{part}_proj.weight"]
                if random.shape == weight.shape:
                    weight[:, :hidden] = random[:, :hidden]
            take(f"{ours}attention.{part}_proj.weight", weight)
        take(f"{ours}attention.o_proj.weight", quieter * read(f"{theirs}self_attn.o_proj.weight"))
        for part, factor in (("gate", 1), ("up", 1), ("down", quieter)):
            take(f"{ours}mlp.{part}_proj.weight", factor * read(f"{theirs}mlp.{part}_proj.weight"))
        norm = "hidden_norm" if layer == 0 else "input_norm"
        take(f"{ours}{norm}.weight", read(f"{theirs}input_layernorm.weight"))
        take(f"{ours}post_attention_norm.weight", read(f"{theirs}post_attention_layernorm.weight"))
    take("norm.weight", read("model.norm.weight"))
    take("lm_head.weight", lm_head_rows)
    return tensors
