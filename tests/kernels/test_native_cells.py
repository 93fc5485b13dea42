"""The native kernels inside compiled MindSpore graphs: numbers, bits, order of reads and writes, refusals."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from support import tiny

from ms_eagle.backends.stock import StockBackend
from ms_eagle.kernels import native
from ms_eagle.kernels.library import load
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Weight, joined
from ms_eagle.tree.masks import causal_mask, tree_mask

SLOTS = 41


@pytest.fixture(scope="module")
def operators():
    return native.Operators(load(2))


class Block(nn.Cell):
    def __init__(self, attention, mlp):
        super().__init__()
        self.attention, self.mlp = attention, mlp


class NativeDecoder(nn.Cell):
    """A teacher put together from native Cells, called like ``ms_eagle.models.teacher.Teacher``."""

    def __init__(self, operators, config, read, batch=1):
        super().__init__()
        eps = config.rms_norm_eps
        self.vocabulary = native.Vocabulary(operators, read("model.embed_tokens.weight"))
        if not config.tied:
            self.head = native.Vocabulary(operators, read("lm_head.weight"))
        self.tied = config.tied
        cache = KVCache(config.num_layers, batch, config.num_kv_heads, SLOTS, config.head_dim, ms.float32)
        self.cache = cache
        self.blocks = nn.CellList()
        for i in range(config.num_layers):
            layer = f"model.layers.{i}."

            def rows(part, names, biased, layer=layer):
                weights = [read(f"{layer}{part}.{name}.weight") for name in names]
                biases = [read(f"{layer}{part}.{name}.bias") for name in names] if biased else None
                return joined(weights), None if biases is None else joined(biases)

            qkv, qkv_bias = rows("self_attn", ("q_proj", "k_proj", "v_proj"), config.qkv_bias)
            out, out_bias = rows("self_attn", ("o_proj",), config.o_bias)
            attention = native.AttentionBlock(
                operators,
                qkv,
                out,
                eps,
                cache.shape,
                norm=read(f"{layer}input_layernorm.weight"),
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                q_norm=read(f"{layer}self_attn.q_norm.weight") if config.qk_norm else None,
                k_norm=read(f"{layer}self_attn.k_norm.weight") if config.qk_norm else None,
            )
            _, gate_up_bias = rows("mlp", ("gate_proj", "up_proj"), config.mlp_bias)
            down, down_bias = rows("mlp", ("down_proj",), config.mlp_bias)
            mlp = native.MlpBlock(
                operators,
                read(f"{layer}mlp.gate_proj.weight"),
                read(f"{layer}mlp.up_proj.weight"),
                down,
                eps,
                norm=read(f"{layer}post_attention_layernorm.weight"),
                gate_up_bias=gate_up_bias,
                down_bias=down_bias,
            )
            self.blocks.append(Block(attention, mlp))
        self.norm = native.RMSNorm(operators, read("model.norm.weight"), eps)
        cos, sin = config.rope.tables(SLOTS)
        self.cos, self.sin = Parameter(Tensor(cos), name="cos"), Parameter(Tensor(sin), name="sin")
        self.visible = operators.visible(20)
        self.commit = native.Commit(operators, ParameterTuple((*cache.keys, *cache.values)), cache.shape)

    def construct(self, tokens, positions, slots, mask):
        x = self.vocabulary.embed(tokens)
        visible = self.visible(mask)
        for i, block in enumerate(self.blocks):
            keys, values = self.cache.keys[i], self.cache.values[i]
            x = block.attention(x, x, self.cos, self.sin, positions, slots, visible, keys, values)
            x = block.mlp(x)
        hidden = self.norm(x)
        head = self.vocabulary if self.tied else self.head
        return head.logits(hidden), head.greedy(hidden)


def contents(decoder):
    """All caches of a decoder, each ``[B, H_kv, S, d]``, copied."""
    cache = decoder.cache
    return [each.asnumpy().reshape(cache.shape).copy() for each in (*cache.keys, *cache.values)]


class EagerDecoder(nn.Cell):
    def __init__(self, config, read, batch=1):
        super().__init__()
        backend = StockBackend("eager", ms.float32)
        self.teacher = Teacher(config, read, backend, batch=batch, slots=SLOTS, positions=SLOTS)

    def construct(self, tokens, positions, slots, mask):
        hidden, _ = self.teacher(tokens, positions, slots, mask)
        return self.teacher.logits(hidden)


def tiny_model(name):
    model = tiny.make(name)
    config = DecoderConfig.from_hf(
        json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}
    )
    return config, tiny.weights(model).__getitem__


def int32(*values):
    return Tensor(np.array(values, np.int32))


def chunk(tokens, at):
    """Arguments of one call over consecutive tokens ``[B, T]`` that start at position ``at``."""
    batch, rows = tokens.shape
    positions = np.tile(np.arange(at, at + rows, dtype=np.int32), (batch, 1))
    mask = causal_mask(int32(*[at] * batch), int32(*[rows] * batch), rows, SLOTS)
    return Tensor(tokens.astype(np.int32)), Tensor(positions), Tensor(positions), mask


@pytest.mark.parametrize("name", ["llama_tied", "openpangu", "qwen2", "qwen3", "llama_mlp_bias"])
def test_agrees_with_the_eager_teacher(operators, name):
    config, read = tiny_model(name)
    decoder, eager = NativeDecoder(operators, config, read, 2), EagerDecoder(config, read, 2)
    tokens = np.random.default_rng(1).integers(0, 96, (2, 20))
    at = 0
    for rows in (9, 9, 1, 1):
        arguments = chunk(tokens[:, at : at + rows], at)
        logits, (best, faulty) = decoder(*arguments)
        want = eager(*arguments).asnumpy()
        np.testing.assert_allclose(logits.asnumpy(), want, atol=1e-4 * np.abs(want).max(), rtol=0)
        np.testing.assert_array_equal(best.asnumpy(), logits.asnumpy().argmax(2))
        assert not faulty.asnumpy().any()
        at += rows
    for got, want in zip(contents(decoder), contents(eager.teacher), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_chunk_single_row_and_tree_row_give_the_same_bits(operators):
    config, read = tiny_model("qwen3")
    tokens = np.random.default_rng(2).integers(0, 96, (1, 14))
    chunked, single, tree = (NativeDecoder(operators, config, read) for _ in range(3))
    want = chunked(*chunk(tokens, 0))[0].asnumpy()
    alone = [single(*chunk(tokens[:, i : i + 1], i))[0].asnumpy() for i in range(14)]
    assert np.concatenate(alone, 1).tobytes() == want.tobytes()
    #  0 -> 1 -> 4 -> 6 are the tokens 10..13; the other rows are branches that lose
    parents, path = [0, 0, 0, 2, 1, 4, 4], [0, 1, 4, 6]
    tree(*chunk(tokens[:, :10], 0))
    rows = np.random.default_rng(3).integers(0, 96, (1, 7))
    rows[0, path] = tokens[0, 10:]
    table = [np.arange(7)]
    for _ in range(3):
        table.append(np.array(parents)[table[-1]])
    depths = np.array([0, 1, 1, 2, 2, 3, 3])
    mask = tree_mask(int32(10), Tensor(np.array(table, np.int32)[None]), Tensor(np.ones((1, 7), bool)), SLOTS)
    arguments = (int32(rows[0]), int32(10 + depths), int32(np.arange(10, 17)), mask)
    logits = tree(*arguments)[0].asnumpy()
    assert logits[:, path].tobytes() == want[:, 10:].tobytes()
    source, target = int32([10, 11, 14, 16, SLOTS - 1]), int32([10, 11, 12, 13, SLOTS - 1])
    assert tree.commit(source, target).asnumpy() == 2
    for got, other in zip(contents(tree), contents(single), strict=True):
        assert got[:, :, :14].tobytes() == other[:, :, :14].tobytes()


class ReadsAndWrites(nn.Cell):
    """Native and stock operators take turns on one Parameter within a graph; one result is not used."""

    def __init__(self, operators):
        super().__init__()
        self.cache = Parameter(Tensor(np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)), name="cache")
        self.move = operators.commit(1)
        self.layout = int32(1, 6).reshape(2)
        self.where = Tensor(np.array([[0, 0, 5]], np.int32))

    def construct(self, x):
        before = self.cache + 0.0
        self.move(int32_constant(0), int32_constant(1), self.layout, self.cache)
        after_native = self.cache + 0.0
        ops.scatter_nd_update(self.cache, self.where, x)
        after_stock = self.cache + 0.0
        self.move(int32_constant(5), int32_constant(0), self.layout, self.cache)
        return before, after_native, after_stock


@ops.constexpr
def int32_constant(value):
    return int32([value])


def test_writes_keep_program_order_with_stock_operators_and_persist(operators):
    cell = ReadsAndWrites(operators)
    start = [0, 1, 2, 3, 4, 5]
    for value in (7.0, 8.0, 9.0):
        got = [part.asnumpy().ravel().tolist() for part in cell(Tensor(np.full((1, 1), value, np.float32)))]
        moved = [start[0], start[0], *start[2:]]
        written = [*moved[:5], value]
        assert got == [start, moved, written]
        start = [value, *written[1:]]
        assert cell.cache.asnumpy().ravel().tolist() == start


class Doubles(nn.Cell):
    """Shares a decoder with another graph, as prefill and cycle share one teacher."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def construct(self, tokens, positions, slots, mask):
        return self.decoder(tokens, positions, slots, mask)[0] * 2.0


def test_two_graphs_share_one_cache(operators):
    config, read = tiny_model("llama")
    tokens = np.random.default_rng(4).integers(0, 96, (1, 9))
    decoder, reference = NativeDecoder(operators, config, read), NativeDecoder(operators, config, read)
    other = Doubles(decoder)
    want = reference(*chunk(tokens, 0))[0].asnumpy()
    np.testing.assert_array_equal(decoder(*chunk(tokens[:, :5], 0))[0].asnumpy(), want[:, :5])
    np.testing.assert_array_equal(other(*chunk(tokens[:, 5:8], 5)).asnumpy(), 2 * want[:, 5:8])
    np.testing.assert_array_equal(decoder(*chunk(tokens[:, 8:], 8))[0].asnumpy(), want[:, 8:])


def test_padded_rows_change_nothing_but_the_trash_slot(operators):
    config, read = tiny_model("llama")
    decoder = NativeDecoder(operators, config, read)
    tokens = np.random.default_rng(5).integers(0, 96, (1, 6))
    plain = decoder(*chunk(tokens[:, :3], 0))[0].asnumpy()
    kept = contents(decoder)
    trash = SLOTS - 1
    slots = int32([0, 1, 2, trash, trash, trash])
    mask = causal_mask(int32(0), int32(3), 6, SLOTS)
    logits = decoder(Tensor(tokens.astype(np.int32)), int32([0, 1, 2, 0, 0, 0]), slots, mask)[0].asnumpy()
    assert logits[:, :3].tobytes() == plain.tobytes()
    assert np.isfinite(logits).all()
    for old, new in zip(kept, contents(decoder), strict=True):
        assert new[:, :, :trash].tobytes() == old[:, :, :trash].tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(slots=[0, SLOTS]), f"AttentionBlock: slots holds {SLOTS}; expected 0..{SLOTS - 1}"),
        (dict(tokens=[1, 96]), r"EmbedRows: tokens holds 96; expected 0\.\.95"),
    ],
)
def test_a_bad_index_is_an_error_with_a_sentence(operators, change, message):
    config, read = tiny_model("llama")
    decoder = NativeDecoder(operators, config, read)
    arguments = dict(zip(("tokens", "positions", "slots", "mask"), chunk(np.array([[1, 2]]), 0), strict=True))
    decoder(*arguments.values())
    arguments |= {name: int32(value) for name, value in change.items()}
    with pytest.raises(RuntimeError, match=message):
        decoder(*arguments.values())[0].asnumpy()


def test_top_and_linear_in_a_graph(operators):
    class Top(nn.Cell):
        def __init__(self):
            super().__init__()
            weight, bias = np.eye(5, dtype=np.float32)[[0, 1, 1, 2, 0]], np.ones(5, np.float32)
            self.linear = native.Linear(operators, Weight.of(weight), Weight.of(bias))
            self.top = operators.top(3)

        def construct(self, x):
            return self.top(self.linear(x).reshape(2, 5))

    x = Tensor(np.array([[[1, 3, 2, 0, 0], [5, 5, 5, 0, 0]]], np.float32))
    values, columns = Top()(x)
    assert values.asnumpy().tolist() == [[4, 4, 3], [6, 6, 6]]
    assert columns.asnumpy().tolist() == [[1, 2, 3], [0, 1, 2]]


def test_exported_graph_runs_again(operators, tmp_path):
    config, read = tiny_model("llama")
    decoder = NativeDecoder(operators, config, read)
    tokens = np.random.default_rng(6).integers(0, 96, (1, 4))
    path = tmp_path / "decoder"
    ms.export(decoder, *chunk(tokens, 0), file_name=str(path), file_format="MINDIR")
    loaded = nn.GraphCell(ms.load(f"{path}.mindir"))
    want = decoder(*chunk(tokens, 0))[0].asnumpy()
    got = loaded(*chunk(tokens, 0))
    got = got[0] if isinstance(got, tuple) else got
    assert got.asnumpy().tobytes() == want.tobytes()


def test_settling_weights_changes_nothing(operators):
    weight = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
    cell, x = native.Linear(operators, Weight.of(weight), None), Tensor(np.ones((1, 1, 512), np.float32))
    before = cell(x).asnumpy()
    native.settle(operators.library, cell, cell).join()
    assert cell(x).asnumpy().tobytes() == before.tobytes()
