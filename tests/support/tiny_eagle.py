"""Tiny teachers and EAGLE-3 heads on disk, and engines loaded from them the way users load theirs.

``engine(model_dir("qwen3", tmp), head_dir(...), ["tree.budget=6"])`` goes through ``load_config`` and
``load_engine``; without a head it is the teacher alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support import head_files, tiny, toy_tokenizers

from ms_eagle.config.sections import Config, load_config
from ms_eagle.engine.engine import Engine
from ms_eagle.loading import load_engine
from ms_eagle.models.architecture import DecoderConfig

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Small enough to compile fast, with more than one way through the tree.
TREE = ("tree.budget=6", "tree.depth=3", "tree.branch=3")


def model_dir(name: str, parent: Path, seed: int = 0, **settings) -> Path:
    """A random teacher of an architecture of ``tiny`` with a byte-level tokenizer and a chat template.

    ``settings`` go over ``tiny.SIZES``; the vocabulary is the tokenizer's.
    """
    directory = parent / f"model-{name}-{seed}"
    directory.mkdir(parents=True)
    tokenizer = toy_tokenizers.byte_level()
    tiny.save(name, directory, seed, **{"vocab_size": tokenizer.get_vocab_size(), **settings})
    toy_tokenizers.write_json(
        directory,
        tokenizer,
        {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE},
    )
    return directory


def decoder(model: Path) -> DecoderConfig:
    """What the teacher of a directory looks like."""
    return DecoderConfig.from_hf(json.loads((model / "config.json").read_text()))


def head_dir(
    model: Path,
    parent: Path,
    *,
    name: str = "head",
    taps: Sequence[int] | None = None,
    draft_vocab_size: int = 64,
    seed: int = 0,
    biases: Sequence[str] = (),
    extra: Sequence[str] = (),
    logits: float = 1.0,
    **options,
) -> Path:
    """A random SpecForge head for the teacher in ``model``; its acceptance is near 0.

    Args:
        taps: inputs of blocks; by default all of a teacher of up to three layers, else every first one.
        biases, extra: see ``head_files.tensors``.
        logits: scales them. 0 makes every score equal; 1e4 makes a child of probability 1.
        options: over or into its config.json, such as ``norm_output=True`` or ``hidden_size=32``.
    """
    teacher = decoder(model)
    taps = tuple(taps) if taps is not None else tuple(range(min(3, teacher.num_layers)))
    config = {
        **head_files.CONFIG,
        "hidden_size": teacher.hidden_size,
        "target_hidden_size": teacher.hidden_size,
        "vocab_size": teacher.vocab_size,
        "draft_vocab_size": draft_vocab_size,
        "num_aux_hidden_states": len(taps),
        "eagle_aux_hidden_state_layer_ids": list(taps),
        **options,
    }
    weights = head_files.tensors(config, seed=seed, biases=biases, extra=extra)
    weights["lm_head.weight"] = weights["lm_head.weight"] * np.float32(logits)
    return head_files.write(parent / name, config, {**weights, **head_files.vocabulary(config, seed=seed)})


def config(model: Path, head: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration of `engine`."""
    path = model.parent / "tiny_eagle.yaml"
    path.write_text(f"model:\n  source: {model}\n  max_length: 96\n  dtype: float32\n")
    drafter = [] if head is None else ["drafter.kind=eagle3", f"drafter.source={head}"]
    basis = ["execution.device=CPU", "execution.prefill_chunk=8", *TREE, *drafter]
    return load_config(path, [*basis, *overrides])


def engine(model: Path, head: Path | None, overrides: Sequence[str] = ()) -> Engine:
    """An engine over both, capacity 96, chunks of 8, the small `TREE`; ``overrides`` as for ``--set``.

    ``drafter.kind=synthetic`` among them needs no head, but on a small teacher ``drafter.taps=[0,1]``.
    """
    return load_engine(config(model, head, overrides))
