import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny

from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.errors import UserError

INDEX = "model.safetensors.index.json"
TENSORS = {
    "f32": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 3,
    "f16": torch.tensor([0.1, -65504.0, 6e-8], dtype=torch.float16),
    "bf16": torch.tensor([[1.1, -3e38], [1e-40, float("inf")]], dtype=torch.bfloat16),
    "i64": torch.tensor([3, -1], dtype=torch.int64),
    "flag": torch.tensor([True, False, True]),
}
SHAPES = {name: tuple(value.shape) for name, value in TENSORS.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def shards(directory: Path, files: dict[str, list[str]], weight_map: dict[str, str] | None = None) -> None:
    (directory / "model.safetensors").unlink(missing_ok=True)
    for file, names in files.items():
        save_file({name: TENSORS[name] for name in names}, directory / file)
    if weight_map is None:
        weight_map = {name: file for file, names in files.items() for name in names}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_names_shapes_dtypes_and_config(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.names == ("bf16", "f16", "f32", "flag", "i64")
    assert checkpoint.shape("f32") == (2, 3)
    assert {name: checkpoint.dtype(name) for name in checkpoint.names} == {
        "bf16": "BF16", "f16": "F16", "f32": "F32", "flag": "BOOL", "i64": "I64",
    }  # fmt: skip
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.directory == directory


def test_values(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    for name, dtype in {"f32": np.float32, "f16": np.float16}.items():
        assert checkpoint.read(name).dtype == dtype
        np.testing.assert_array_equal(checkpoint.read(name), TENSORS[name].numpy())
    assert checkpoint.read("bf16").dtype == np.float32
    np.testing.assert_array_equal(checkpoint.read("bf16"), TENSORS["bf16"].float().numpy())
    np.testing.assert_array_equal(checkpoint.read_integers("i64"), [3, -1])
    np.testing.assert_array_equal(checkpoint.read_integers("flag"), [True, False, True])


def test_float32_is_mapped_without_a_copy_and_read_only(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    values = checkpoint.read("f32")
    assert np.shares_memory(values, checkpoint.read("f32"))
    with pytest.raises(ValueError, match="read-only"):
        values[0, 0] = 1


def test_data_at_odd_places_comes_aligned(directory: Path) -> None:
    entries = {
        "u": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    data = len(text).to_bytes(8, "little") + text + b"\x00" + np.array([1.5, 2.5], np.float32).tobytes()
    (directory / "model.safetensors").write_bytes(data)
    values = Checkpoint.open(directory).read("w")
    assert values.flags.aligned
    assert values.tolist() == [1.5, 2.5]
    assert not values.flags.writeable


@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_what_transformers_saves(tmp_path: Path, size: str) -> None:
    model = tiny.make("qwen2")
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / INDEX).exists() == (size == "20KB")
    checkpoint = Checkpoint.open(tmp_path)
    state = model.state_dict()
    checkpoint.check({name: tuple(value.shape) for name, value in state.items()})
    for name, value in state.items():
        np.testing.assert_array_equal(checkpoint.read(name), value.numpy())


def test_a_complete_checkpoint_passes(directory: Path) -> None:
    Checkpoint.open(directory).check(SHAPES, integers=["i64", "flag"])
    some = {name: SHAPES[name] for name in ("f32", "f16")}
    Checkpoint.open(directory).check(some, ignored=["b*16", "i64", "fl?g"])


def test_a_scalar_and_an_empty_tensor(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"s": torch.tensor(2.5), "e": torch.zeros(0, 3)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.read("s").shape == ()
    assert float(checkpoint.read("s")) == 2.5
    assert checkpoint.read("e").shape == (0, 3)


@pytest.mark.parametrize(
    ("change", "ignored", "message"),
    [
        ({"g": (1,)}, [], "1 missing tensor: g; "),
        ({name: (1,) for name in "ghijk"}, [], "5 missing tensors: g, h, i, ...; "),
        ({"f32": None}, [], "1 unexpected tensor: f32; "),
        (
            {"f32": None, "f16": None, "bf16": None, "flag": None},
            ["f16"],
            "3 unexpected tensors: bf16, f32, flag; ",
        ),
        ({"f32": (3, 2)}, [], r"1 mis-shaped tensor: f32 \[2, 3\] \(expected \[3, 2\]\); "),
        ({}, ["*"], "2 wrongly typed tensors: i64 of dtype I64, flag of dtype BOOL; "),
    ],
)
def test_differences_are_named_and_counted(
    directory: Path, change: dict[str, tuple[int, ...] | None], ignored: list[str], message: str
) -> None:
    expected = {name: shape for name, shape in (SHAPES | change).items() if shape is not None}
    with pytest.raises(UserError, match=message):
        Checkpoint.open(directory).check(expected, ignored)


def test_a_float_index_map_is_refused(directory: Path) -> None:
    with pytest.raises(UserError, match="1 wrongly typed tensor: f32 of dtype F32"):
        Checkpoint.open(directory).check(SHAPES, integers=["i64", "flag", "f32"])


def test_reading_the_wrong_kind_or_an_unknown_name(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    with pytest.raises(UserError, match="'i64' has dtype I64, expected a float tensor"):
        checkpoint.read("i64")
    with pytest.raises(UserError, match="'f32' has dtype F32, expected an integer or boolean tensor"):
        checkpoint.read_integers("f32")
    with pytest.raises(UserError, match="has no tensor 'nope'"):
        checkpoint.read("nope")


def test_shards_are_joined(directory: Path) -> None:
    shards(directory, {"a-1.safetensors": ["f32", "i64"], "a-2.safetensors": ["f16", "bf16", "flag"]})
    checkpoint = Checkpoint.open(directory)
    checkpoint.check(SHAPES, integers=["i64", "flag"])
    np.testing.assert_array_equal(checkpoint.read("f32"), TENSORS["f32"].numpy())


ONE, TWO = "1.safetensors", "2.safetensors"


@pytest.mark.parametrize(
    ("files", "weight_map", "message"),
    [
        ({ONE: ["f32"]}, {"f32": ONE, "f16": TWO}, "1 of 2 shards are missing: 2.safetensors"),
        ({ONE: ["f32"]}, {"f32": ONE, "f16": ONE}, "places 'f16' in 1.safetensors, which lacks it"),
        (
            {ONE: ["f32", "f16"]},
            {"f32": ONE},
            "holds 'f16', which model.safetensors.index.json does not list",
        ),
        ({ONE: ["f32"], TWO: ["f32", "f16"]}, {"f32": ONE, "f16": TWO}, "'f32' is in both 1.*and 2"),
        ({ONE: ["f32"]}, {"f32": "../1.safetensors"}, "expected a .safetensors file of the same directory"),
        ({ONE: ["f32"]}, {"f32": "pytorch_model.bin"}, "expected a .safetensors file"),
        ({ONE: ["f32"]}, {"f32": 5}, "expected a .safetensors file"),
        ({ONE: ["f32"]}, {"f32": f"{'x' * 300}.safetensors"}, "expected a .safetensors file of the same"),
        ({ONE: ["f32"]}, {}, "has no weight_map"),
    ],
)
def test_an_index_that_disagrees_is_refused(
    directory: Path, files: dict[str, list[str]], weight_map: dict[str, str], message: str
) -> None:
    shards(directory, files, weight_map)
    with pytest.raises(UserError, match=message):
        Checkpoint.open(directory)


@pytest.mark.parametrize("tied", [True, False])
def test_an_index_may_list_the_lm_head_of_a_tied_model(directory: Path, tied: bool) -> None:
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    shards(directory, {ONE: ["f32"], TWO: ["f16"]}, {"f32": ONE, "f16": TWO, "lm_head.weight": TWO})
    if tied:
        assert Checkpoint.open(directory).names == ("f16", "f32")
    else:
        with pytest.raises(UserError, match=r"places 'lm_head\.weight' in 2\.safetensors, which lacks it"):
            Checkpoint.open(directory)


def test_a_tied_model_may_be_stored_under_its_other_name(directory: Path) -> None:
    save_file({"f16": TENSORS["f16"]}, directory / ONE, metadata={"twin": "f16"})
    (directory / "model.safetensors").unlink()
    for listed in (["f16"], ["twin"], ["f16", "twin"]):
        (directory / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(listed, ONE)}))
        checkpoint = Checkpoint.open(directory)
        np.testing.assert_array_equal(checkpoint.read("twin"), TENSORS["f16"].numpy())


def test_damaged_files_are_refused(directory: Path) -> None:
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) - 3])
    with pytest.raises(UserError, match=r"model\.safetensors is not a usable .* truncated"):
        Checkpoint.open(directory)
    weights.write_bytes(b"{" + whole[1:])
    with pytest.raises(UserError, match=r"model\.safetensors is not a usable"):
        Checkpoint.open(directory)


def test_config_is_needed(directory: Path) -> None:
    (directory / "config.json").write_text('{\n"a": 1,\n}')
    with pytest.raises(UserError, match=r"config\.json:3: not valid JSON"):
        Checkpoint.open(directory)
    (directory / "config.json").unlink()
    with pytest.raises(UserError, match=r"cannot read .*config\.json: No such file"):
        Checkpoint.open(directory)
    with pytest.raises(UserError, match="absent is not a directory"):
        Checkpoint.open(directory / "absent")


def test_pickles_are_never_read(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only as a pickle \(pytorch_model\.bin\).*safe_serialization=True"):
        Checkpoint.open(directory)


def test_a_directory_without_weights(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "adapter.safetensors")
    with pytest.raises(
        UserError, match=r"1 other safetensors files \(adapter\.safetensors\); expected model"
    ):
        Checkpoint.open(directory)
    (directory / "adapter.safetensors").unlink()
    with pytest.raises(UserError, match="holds no safetensors files"):
        Checkpoint.open(directory)
