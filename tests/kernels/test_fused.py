"""The fused kernel: its limits, and the graph an Ascend device would get, built on this host."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from support import tiny

from ms_eagle.backends.stock import StockBackend
from ms_eagle.deployment.export import export_graph
from ms_eagle.errors import UserError
from ms_eagle.kernels.contract import ContractError
from ms_eagle.kernels.fused import FusedAttention, check_limits
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.teacher import Teacher

BNSD = 1  # the number the exporter writes for this input_layout

GOOD = dict(
    query=(1, 4, 3, 16),
    key=(1, 2, 8, 16),
    query_dtype=ms.float16,
    key_dtype=ms.float16,
    value_dtype=ms.float16,
    num_heads=4,
)


def test_limits_accept_a_good_call():
    assert check_limits(**GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(query_dtype=ms.float32), "query has dtype Float32"),
        (dict(key_dtype=ms.bfloat16), "key and value have dtypes BFloat16, Float16"),
        (dict(value_dtype=ms.float32), "key and value have dtypes Float16, Float32"),
        (dict(num_heads=8), "query has 4 heads"),
        (dict(query=(4096, 4, 3, 16)), "the batch is 4096"),
        (dict(key=(1, 2, 2**20, 16)), "rows or slots exceed"),
    ],
)
def test_limits_refuse(change, message):
    with pytest.raises(ContractError, match=message):
        check_limits(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("heads", "size", "message"), [(4, 24, "head size is 24"), (4, 528, "528"), (512, 16, "512 heads")]
)
def test_refuses_what_the_operator_cannot_do(heads, size, message):
    with pytest.raises(UserError, match=message):
        FusedAttention(heads, size)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((1, 1, 3, 8), np.float16), "mask has dtype Float16"),
        (np.zeros((1, 1, 3, 9), bool), r"mask has shape \(1, 1, 3, 9\)"),
        (np.zeros((1, 1, 1, 8), bool), r"mask has shape \(1, 1, 1, 8\)"),
        (np.zeros((3, 8), bool), "four dimensions"),
    ],
)
def test_mask_is_checked_when_the_graph_is_compiled(mask, message):
    query = Tensor(np.zeros(GOOD["query"], np.float16))
    key = Tensor(np.zeros(GOOD["key"], np.float16))
    with pytest.raises(ContractError, match=message):
        export_graph(FusedAttention(4, 16), (query, key, key, Tensor(mask)))


@pytest.mark.parametrize("rows", [1, 5])
def test_exported_decoder_step_has_one_fused_node_per_layer(rows):
    model = tiny.make("qwen3")
    config = DecoderConfig.from_hf(model.config.to_dict() | {"architectures": ["Qwen3ForCausalLM"]})
    tensors = tiny.weights(model)
    slots = 24
    teacher = Teacher(
        config,
        tensors.__getitem__,
        StockBackend("fused", ms.float16),
        batch=1,
        slots=slots,
        positions=slots,
    )
    ids = Tensor(np.zeros((1, rows), np.int32))
    graph = export_graph(teacher, (ids, ids, ids, Tensor(np.zeros((1, 1, rows, slots), bool))))
    found = graph.operators()
    assert found["FlashAttentionScore"] == config.num_layers
    assert found["Softmax"] == 0
    # Inputs of the operator: q, k, v, five optional tensors and two lists, then its settings in order.
    for node in graph.find("FlashAttentionScore"):
        heads, keep, scale, _, _, _, layout, sparse = (graph.constants[name] for name in node.input[10:])
        assert (heads.i, keep.f, scale.f, sparse.i) == (config.num_heads, 1.0, config.head_dim**-0.5, 1)
        assert layout.i == BNSD
    assert min(graph.dimensions()) > 0
