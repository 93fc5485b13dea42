"""GGUF tensors read in place: codes as they are stored, and the values of a conversion."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import pointer, sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.errors import UserError
from ms_eagle.kernels.formats import codes

WIDE = dict(hidden_size=64, intermediate_size=96, head_dim=16)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0])
def test_values_are_those_of_a_conversion(tmp_path: Path, kind: Kind) -> None:
    path = tiny_gguf.save(tmp_path / "m.gguf", tiny.make("llama", **WIDE), kind=kind)
    stored, widened = (
        Checkpoint.open(sources.resolve(str(path), cache_dir=tmp_path / "cache", widened=each).directory)
        for each in (False, True)
    )
    assert stored.names == widened.names
    assert stored.quantised == (kind not in (Kind.F32, Kind.F16, Kind.BF16))
    assert stored.converted == (("Q5_0",) if kind == Kind.Q5_0 else ())
    known = kind in (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)
    for name in stored.names:
        weight = stored.weight(name)
        np.testing.assert_array_equal(weight.dense().astype(np.float32), widened.read(name), name)
        if len(weight.shape) == 2:
            assert (codes(weight) is not None) == known, name
            assert stored.dtype(name) == kind.name


def test_the_file_is_where_it_was_and_has_to_be_there(tmp_path: Path) -> None:
    path = tiny_gguf.save(tmp_path / "m.gguf", tiny.make("llama"))
    directory = sources.resolve(str(path), cache_dir=tmp_path / "cache").directory
    assert not list(directory.glob("*.gguf")) + list(directory.glob("*.safetensors"))
    assert pointer.files(directory) == [path]
    path.unlink()
    with pytest.raises(UserError, match=r"m\.gguf"):
        Checkpoint.open(directory)
    (directory / pointer.NAME).write_text('{"gguf": 3}')
    with pytest.raises(UserError, match="does not say where the weights are"):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("kind", "tensor", "name"),
    [
        (Kind.Q8_0, "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        (Kind.F16, "blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"),
        (Kind.F16, "blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight"),  # rows in another order
    ],
)
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, kind: Kind, tensor: str, name: str) -> None:
    path = tiny_gguf.save(tmp_path / "m.gguf", tiny.make("llama", **WIDE), kind=kind)
    reader = gguf.GGUFReader(path)
    at = next(each for each in reader.tensors if each.name == tensor).data_offset
    content = bytearray(path.read_bytes())
    content[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    checkpoint = Checkpoint.open(sources.resolve(str(path), cache_dir=tmp_path / "cache").directory)
    with pytest.raises(UserError, match=rf"{tensor}.* holds NaN or infinity"):
        checkpoint.weight(name)
