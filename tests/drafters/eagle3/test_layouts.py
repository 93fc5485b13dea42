"""A head drafts the same in the code of a layout's readers; what a layout cannot say is refused."""

import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import head_files, reference_head
from support import readers_of_heads as readers
from support.heads import PLAIN, random_head

from ms_eagle.drafters.eagle3.checkpoint import Head, load_head
from ms_eagle.drafters.eagle3.layouts import (
    LAYOUTS,
    TeacherFacts,
    chosen,
    obstacles,
    without_copied_embedding,
    write_head,
)
from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig
from ms_eagle.system import files

LAYERS = 10
FACTS = TeacherFacts(LAYERS, "LlamaForCausalLM", "hf:org/teacher")
TAPS = (2, 5, 7)  # the default of ten layers
READERS = {
    "safeailab": [readers.SafeAILab],
    "sglang": [readers.SGLang, readers.SpecForge, readers.SafeAILab],
    "speculators": [readers.Speculators],
}
HEADS = {
    "plain": {},
    "own embedding": {"own_embedding": True},
    "full vocabulary": {"draft_vocab_size": 40},
    "eagle 3.1": {"fc_norm": True, "norm_output": True},
    "other taps": {"taps": (1, 4, 6, 9), "fc_norm": True},
    "first tap": {"taps": (0, 4)},
    "one tap": {"taps": (4,)},
    "two layers": {"num_layers": 2, "norm_output": True},
    "wide heads": {"head_dim": 8, "rope": RopeConfig(8, 3e4, "default", {}, 64)},
    "speculators' own": {"norm_before_fc": True, "norm_before_residual": True, "qk_norm": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "fc bias": {"fc_bias": True},
    "shared LM head": {"shares_lm_head": True, "draft_vocab_size": 40},
    "double norm": {"double_norm": True},
    "raw logits": {"raw_logits": True},
}
ABLE = {
    "plain": {"safeailab", "sglang", "speculators"},
    "own embedding": {"safeailab", "speculators"},
    "full vocabulary": {"safeailab", "sglang", "speculators"},
    "eagle 3.1": {"sglang", "speculators"},
    "other taps": {"sglang", "speculators"},
    "first tap": {"speculators"},
    "one tap": {"speculators"},
    "two layers": {"sglang", "speculators"},
    "wide heads": {"sglang", "speculators"},
    "speculators' own": {"speculators"},
    "biases": {"speculators"},
    "fc bias": set(),
    "shared LM head": {"sglang"},
    "double norm": set(),
    "raw logits": set(),
}


def a_head(name) -> Head:
    head = random_head(replace(PLAIN, **{"taps": TAPS, **HEADS[name]}))
    if name == "full vocabulary":  # of which readers take draft ids for target ids
        head = replace(head, d2t=np.random.default_rng(3).permutation(40).astype(np.int32))
    return head


def write(directory, head, layout, **options):
    given = {"teacher": FACTS, "dtype": "float32", **options}
    write_head(directory, head.config, head.tensors, head.target_ids, layout=layout, **given)
    return directory


def spread(logits, ids, vocabulary=40):
    """Logits by target id, ``[T, V]``."""
    whole = torch.full((logits.shape[0], vocabulary), -torch.inf, dtype=torch.float64)
    whole[:, torch.as_tensor(np.asarray(ids)).long()] = logits
    return whole


@pytest.mark.parametrize("name", HEADS)
def test_which_layouts_can_say_a_head(name):
    config = a_head(name).config
    assert {layout for layout in LAYOUTS if not obstacles(config, layout, LAYERS)} == ABLE[name]
    for layout in LAYOUTS:
        if layout in ABLE[name]:
            assert chosen(config, layout, LAYERS) == layout
        else:
            with pytest.raises(UserError, match=f"the layout {layout} cannot say what the head has"):
                chosen(config, layout, LAYERS)
    if ABLE[name]:
        assert chosen(config, None, LAYERS) == next(layout for layout in LAYOUTS if layout in ABLE[name])
    else:
        with pytest.raises(UserError, match="no layout can say all of it"):
            chosen(config, None, LAYERS)


@pytest.mark.parametrize(("name", "layout"), [(n, layout) for n in HEADS for layout in sorted(ABLE[n])])
def test_written_heads_draft_the_same_in_their_readers_code(tmp_path, name, layout):
    head = a_head(name)
    config, teacher = head.config, head_files.TEACHER
    write(tmp_path, head, layout)
    again = load_head(tmp_path, teacher=teacher)
    assert replace(again.config, format=config.format, notes=(), doubts=()) == config
    rng = np.random.default_rng(1)
    rows, embedding = 5, rng.standard_normal((40, 24))
    tokens, taps = rng.integers(0, 40, rows), rng.standard_normal((rows, 24 * config.num_taps))
    ends = {"teacher_embedding": embedding, "teacher_lm_head": rng.standard_normal((40, 24))}
    causal = np.triu(np.ones((rows, rows), bool), 1)
    ours = reference_head.forward(config, head.tensors, tokens, range(rows), causal, taps=taps, **ends)
    ours_again = reference_head.forward(
        again.config, again.tensors, tokens, range(rows), causal, taps=taps, **ends
    )
    expected = spread(ours.logits, head.target_ids)
    near = {"rtol": 0, "atol": 1e-6}  # rotary tables are float32 here
    torch.testing.assert_close(spread(ours_again.logits, again.target_ids), expected)
    if name == "shared LM head":
        assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] is None
        return
    for kind in READERS[layout]:
        odd = "taps" in HEADS[name] or "num_layers" in HEADS[name] or name in ("eagle 3.1", "wide heads")
        if kind is not READERS[layout][0] and odd:
            continue
        reader = kind(tmp_path)
        tables = (torch.tensor(taps), torch.tensor(tokens), torch.tensor(embedding))
        logits, features = reader.draft(*tables)
        torch.testing.assert_close(spread(logits, reader.target_ids()), expected, **near)
        torch.testing.assert_close(features, ours.next_feature, **near)
        assert tuple(getattr(reader, "taps", None) or config.taps) == config.taps


def test_keys_are_written_only_where_they_differ_from_the_readers_defaults(tmp_path):
    written = {
        layout: json.loads((write(tmp_path / layout, a_head("plain"), layout) / "config.json").read_text())
        for layout in LAYOUTS
    }
    for layout in ("safeailab", "sglang"):
        keys = set(written[layout])
        assert not keys & {"target_hidden_size", "norm_output", "fc_norm", "eagle_config", "head_dim", "bias"}
    assert written["sglang"]["architectures"] == ["LlamaForCausalLMEagle3"]
    assert written["speculators"]["norm_before_residual"] is False  # vLLM would take true
    verifier = {"name_or_path": "org/teacher", "architectures": ["LlamaForCausalLM"]}
    assert written["speculators"]["speculators_config"]["verifier"] == verifier
    names = {layout: set(load_file(tmp_path / layout / "model.safetensors")) for layout in LAYOUTS}
    assert "midlayer.self_attn.q_proj.weight" in names["safeailab"] & names["sglang"]
    assert "layers.0.self_attn.q_proj.weight" in names["speculators"]
    assert all({"d2t", "t2d"} <= each for each in names.values())
    stored = load_file(tmp_path / "sglang" / "model.safetensors")
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (np.int64, bool)


def test_the_keys_that_misled_other_code(tmp_path):
    """``target_hidden_size`` and ``norm_output: false``, said to code that takes them for something else."""
    head, rows = a_head("plain"), torch.arange(4)
    directory, embedding = write(tmp_path, head, "sglang"), torch.randn(40, 24, dtype=torch.float64)
    taps, path = torch.randn(4, 72, dtype=torch.float64), directory / "config.json"
    config = json.loads(path.read_text())
    right, _ = readers.SafeAILab(directory).draft(taps, rows, embedding)
    for reader, key, value in (
        (readers.SafeAILab, "target_hidden_size", 24),
        (readers.SpecForge, "norm_output", False),
    ):
        path.write_text(json.dumps({**config, key: value}))
        assert (reader(directory).draft(taps, rows, embedding)[0] - right).abs().max() > 1


def test_a_scaled_rotation_survives(tmp_path):
    rope = RopeConfig(6, 5e5, "linear", {"factor": 2.5}, 256)
    head = random_head(replace(PLAIN, taps=TAPS, rope=rope))
    assert "linear rope scaling" in obstacles(head.config, "safeailab", LAYERS)
    for layout in ("sglang", "speculators"):
        loaded = load_head(write(tmp_path / layout, head, layout), teacher=head_files.TEACHER)
        assert loaded.config.rope == rope


def test_our_trainers_word_settles_doubts(tmp_path):
    head = random_head(replace(PLAIN, taps=TAPS, norm_output=True, rope=replace(PLAIN.rope, theta=1e6)))
    doubted = load_head(write(tmp_path / "a", head, "sglang"), teacher=head_files.TEACHER).config
    assert len(doubted.doubts) == 2
    assert not doubted.notes
    assert "drafter.norm_output=false" in " ".join(doubted.doubts)
    own = write(tmp_path / "b", head, "sglang", trained_by="ms_eagle")
    assert load_head(own, teacher=head_files.TEACHER).config.doubts == ()


def test_an_embedding_copied_from_the_teacher_is_left_out():
    head = a_head("own embedding")
    rounded = head.tensors["embed.weight"].astype(np.float16).astype(np.float32)
    assert not without_copied_embedding(head, rounded).config.own_embedding
    assert without_copied_embedding(head, rounded[::-1]) is head


def test_a_weight_that_float16_cannot_hold(tmp_path):
    head = a_head("plain")
    head.tensors["norm.weight"][3] = 7e4
    with pytest.raises(UserError, match=r"norm.weight reaches 70000, which float16 cannot hold"):
        write(tmp_path, head, "sglang", dtype="float16")
    write(tmp_path, head, "sglang")


def test_a_full_disk_leaves_the_old_head(tmp_path, monkeypatch):
    write(tmp_path, a_head("plain"), "sglang")
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; an older one there is untouched"):
        write(tmp_path, a_head("eagle 3.1"), "sglang")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json"}


@pytest.mark.parametrize("name", ["plain", "eagle 3.1", "two layers", "speculators' own", "biases"])
def test_speculators_own_class(tmp_path, name):
    """Where speculators is installed: its own module, loaded from the files, gives the same logits."""
    pytest.importorskip("speculators", exc_type=ImportError)
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    head = a_head(name)
    settings = Eagle3SpeculatorConfig.from_pretrained(write(tmp_path, head, "speculators"))
    settings.transformer_layer_config._attn_implementation = "eager"  # the other one is compiled
    module, rng = Eagle3DraftModel(settings).float(), np.random.default_rng(1)
    stored = {key: torch.tensor(value) for key, value in load_file(tmp_path / "model.safetensors").items()}
    absent, unknown = module.load_state_dict(stored, strict=False)
    assert (set(absent), unknown) == (
        {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"},
        [],
    )
    embedding, taps = rng.standard_normal((40, 24)), rng.standard_normal((5, 72)).astype(np.float32)
    module.embed_tokens.weight.data = torch.tensor(embedding, dtype=torch.float32)
    logits, tokens = [], rng.integers(0, 40, 5)
    module.lm_head.register_forward_hook(lambda cell, given, result: logits.append(result[0]))
    with torch.no_grad():
        one = torch.zeros(1, 5, dtype=torch.long)
        module(torch.tensor(taps)[None], torch.tensor(tokens)[None], one, ttt_steps=1)
    causal, ends = np.triu(np.ones((5, 5), bool), 1), {"teacher_embedding": embedding}
    ours = reference_head.forward(head.config, head.tensors, tokens, range(5), causal, taps=taps, **ends)
    torch.testing.assert_close(logits[0].double(), ours.logits, rtol=0, atol=1e-4)
