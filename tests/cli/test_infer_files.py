"""Damaged models through tools/infer.py: one line, exit status 2, nothing written where it runs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.commands import refusal
from support.sessions import save_model, write_config


def change(edit):
    """A breakage that rewrites the tensors of a model."""

    def apply(model: Path) -> Path:
        tensors = load_file(model / "model.safetensors")
        edit(tensors)
        save_file(tensors, model / "model.safetensors")
        return model

    return apply


def cut(model: Path) -> Path:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    return model


def foreign(model: Path) -> Path:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["MambaForCausalLM"]}))
    return model


def corrupt_gguf(model: Path) -> Path:
    path = model / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 64)
    return path


def absent(model: Path) -> Path:
    return model / "nothing"


def grow(tensors):
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = np.concatenate([tensors[name], tensors[name]])


BREAKAGES = {
    "missing model": (absent, r"does not exist"),
    "truncated safetensors": (cut, r"model\.safetensors"),
    "missing tensor": (
        change(lambda t: t.pop("model.norm.weight")),
        r"1 missing tensor: model\.norm\.weight",
    ),
    "extra tensor": (
        change(lambda t: t.update({"model.extra.weight": np.zeros(3, np.float32)})),
        r"1 unexpected tensor: model\.extra\.weight",
    ),
    "mis-shaped tensor": (
        change(grow),
        r"1 mis-shaped tensor: model\.layers\.0\.mlp\.up_proj\.weight \[160, 48\] \(expected \[80, 48\]\)",
    ),
    "corrupt GGUF": (corrupt_gguf, r"broken\.gguf"),
    "unknown architecture": (foreign, r"'MambaForCausalLM' is not implemented; known are LlamaForCausalLM"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_damaged_model(here, tmp_path, name):
    breakage, message = BREAKAGES[name]
    source = breakage(save_model(tmp_path / "model"))
    config = write_config(tmp_path / "c.yaml", source, max_new_tokens=3)
    cache = f"model.cache_dir={tmp_path / 'cache'}"
    line = refusal(here, "--config", config, "--set", cache, "--prompt", "hello")
    assert re.search(message, line), line
