"""GGUF files written by us, read back by our reader, and by llama.cpp where its package is installed."""

import json

import numpy as np
import pytest
import torch
from support import tiny, tiny_gguf

from ms_eagle.checkpoints.gguf import exporting as gguf_export
from ms_eagle.checkpoints.gguf.config import from_metadata
from ms_eagle.checkpoints.gguf.file import GgufFile
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig

NAMES = ["llama_tied", "llama_mlp_bias", "llama_linear", "llama_llama3", "openpangu", "qwen2", "qwen3"]


def write(name, root):
    """A tiny model and its GGUF file."""
    # The reader recovers Llama 3's own context, which the divisors of a tiny one would not tell.
    own = {"rope_scaling": {**tiny.LLAMA3_ROPE, "original_max_position_embeddings": 8192}}
    model = tiny.save(name, root / "model", **(own if name == "llama_llama3" else {}))
    gguf_export.export(root / "model", root / "model.gguf")
    return model, root / "model.gguf"


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_description_come_back(name, tmp_path):
    model, path = write(name, tmp_path)
    file = GgufFile(path)
    expected = tiny_gguf.tensors(model)
    factors = None
    if name == "llama_llama3":
        factors = file.rows("rope_freqs.weight").view(np.float32)
    assert file.tensors.keys() - {"rope_freqs.weight"} == expected.keys()
    for key, values in expected.items():
        np.testing.assert_array_equal(file.rows(key).view(np.float32).reshape(values.shape), values)
    read = from_metadata(
        file.metadata,
        vocab_size=96,
        tied=name.endswith("_tied"),
        attention_bias=name in ("openpangu", "qwen2"),
        mlp_bias=name == "llama_mlp_bias",
        rope_factors=factors,
    )
    ours = DecoderConfig.from_hf(json.loads((tmp_path / "model" / "config.json").read_text()))
    theirs = DecoderConfig.from_hf(read.model)
    same_but_named = {"architecture": theirs.architecture, "rope": theirs.rope}
    assert {**vars(ours), **same_but_named} == vars(theirs)
    assert (ours.rope.theta, ours.rope.scaling) == (theirs.rope.theta, theirs.rope.scaling)
    np.testing.assert_allclose(ours.rope.frequencies()[0], theirs.rope.frequencies()[0], rtol=1e-5)


def test_a_scaling_without_a_form_is_refused(tmp_path):
    with pytest.raises(UserError, match="yarn rope scaling has no GGUF form"):
        write("llama_yarn", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_computes_the_same(name, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="the extra peers is not installed")
    model, path = write(name, tmp_path)
    peer = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, type_k=0, type_v=0, logits_all=True, verbose=False
    )
    prompt = np.random.default_rng(0).integers(3, 96, 40).tolist()
    peer.eval(prompt)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].numpy()
    np.testing.assert_allclose(peer.scores[: len(prompt)], expected, atol=2e-3)
