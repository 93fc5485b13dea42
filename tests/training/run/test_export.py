"""A published head is read back as it was trained, and one is described as configured."""

import dataclasses
import errno
import json
import os

import numpy as np
import pytest
from safetensors import safe_open
from support.new_heads import DECODER, head

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig
from ms_eagle.system import files
from ms_eagle.training.draft_vocabulary import DraftVocabulary
from ms_eagle.training.initial import random_start
from ms_eagle.training.run.export import write_head
from ms_eagle.training.shape import chosen_taps

VOCABULARY = DraftVocabulary(np.array([1, 2, 5, 40, 41, 95], np.int32), 96)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fc_norm": True, "norm_output": True, "taps": (0, 3, 5, 7)},
        {"layers": 2, "norm_output": True, "taps": (1,)},
    ],
    ids=["plain", "eagle 3.1", "two layers"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path, options, dtype):
    config = head(**options)
    tensors = random_start(config, seed=3)
    write_head(tmp_path / "head", config, tensors, VOCABULARY, dtype)
    found = load_head(tmp_path / "head", teacher=DECODER)
    assert dataclasses.replace(found.config, notes=()) == config
    np.testing.assert_array_equal(found.d2t, VOCABULARY.target_ids)
    assert found.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(found.tensors[name], values.astype(dtype).astype(np.float32))


def test_names_and_types_are_those_of_safeailab(tmp_path):
    config = head(layers=2, fc_norm=True)
    write_head(tmp_path, config, random_start(config, seed=0), VOCABULARY, "float16")
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        found = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    for name in (
        "midlayer.self_attn.q_proj.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight",
        "midlayer.post_attention_layernorm.weight",
        "midlayer.mlp.down_proj.weight",
        "layers.1.input_layernorm.weight",
        "layers.1.self_attn.o_proj.weight",
        "fc.weight",
        "fc_norm.2.weight",
        "norm.weight",
        "lm_head.weight",
    ):
        assert found.pop(name) == "F16"
    assert (found.pop("d2t"), found.pop("t2d")) == ("I64", "BOOL")
    assert "embed_tokens.weight" not in found
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"]
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6]
    assert (written["draft_vocab_size"], written["vocab_size"]) == (6, 96)


def test_a_scaled_rotation_survives(tmp_path):
    rope = RopeConfig(8, 5e5, "linear", {"factor": 2.5}, 256)
    config = dataclasses.replace(head(), rope=rope)
    write_head(tmp_path, config, random_start(config, seed=0), VOCABULARY, "float32")
    assert load_head(tmp_path, teacher=DECODER).config.rope == rope


def test_a_weight_that_float16_cannot_hold(tmp_path):
    config = head()
    tensors = random_start(config, seed=0)
    tensors["norm.weight"][3] = 7e4
    with pytest.raises(UserError, match=r"norm.weight reaches 70000, which float16 cannot hold"):
        write_head(tmp_path, config, tensors, VOCABULARY, "float16")
    write_head(tmp_path, config, tensors, VOCABULARY, "float32")


def test_a_full_disk_leaves_the_old_head(tmp_path, monkeypatch):
    config = head()
    write_head(tmp_path, config, random_start(config, seed=0), VOCABULARY, "float32")
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; an older one there is untouched"):
        write_head(tmp_path, config, random_start(config, seed=1), VOCABULARY, "float32")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json"}


def test_taps_are_what_readers_will_take_them_for():
    assert chosen_taps(None, 30) == (2, 15, 27)
    assert chosen_taps([0, 7], 30) == (0, 7)
    for asked, layers, message in (
        (None, 4, "head.taps is null, but a teacher of 4 blocks has no default"),
        ([3, 1], 9, r"head.taps is \[3, 1\]; expected different blocks in ascending order"),
        ([1, 1], 9, r"head.taps is \[1, 1\]; expected different blocks"),
        ([1, 9], 9, r"head.taps: .*the teacher has blocks 0 to 8"),
        ([1, 3, 5], 9, r"take for outputs of blocks, that is for \[2, 4, 6\]"),
    ):
        with pytest.raises(UserError, match=message):
            chosen_taps(asked, layers)
