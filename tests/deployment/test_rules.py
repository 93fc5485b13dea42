"""Every rule of a bundle's graphs: kept by the cycles for Ascend, and broken by a planted violation."""

import copy
import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import auto_generate, operations
from mindspore.train.mind_ir_pb2 import TensorProto
from support import pangu_shapes, tiny, tiny_eagle, tiny_engine

from ms_eagle.backends.stock import StockBackend
from ms_eagle.config.sections import load_config
from ms_eagle.deployment.assembly import Randomly
from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.export import cycle_inputs, export_bundle, export_graph, prefill_inputs
from ms_eagle.deployment.inspection import inspect, lines
from ms_eagle.deployment.manifest import GraphRecord, Manifest
from ms_eagle.deployment.mindir import MindIR
from ms_eagle.deployment.operators import ON_ASCEND, STRUCTURE
from ms_eagle.deployment.rules import RULES, Subject, rules_for
from ms_eagle.paths import CONFIGS
from ms_eagle.system.progress import Progress
from ms_eagle.tree.shape import TreeShape

QUIET = Progress(quiet=True)
SHAPE = TreeShape(6, 3, 3)


@pytest.fixture(scope="module")
def graphs():
    model = tiny.make("qwen3", seed=2)
    head = tiny_engine.random_head(model, head_dim=16)
    backend = StockBackend("fused", ms.float16)
    return tiny_engine.eagle(model, SHAPE, head=head, backend=backend, batch=2).graphs


@pytest.fixture(scope="module")
def greedy(graphs):
    return stripped(export_graph(graphs.cycle(SHAPE, False), tuple(cycle_inputs(graphs).values())))


def stripped(graph):
    """Without values, as a bundle has it."""
    for parameter in graph.model.graph.parameter:
        parameter.ClearField("raw_data")
    return graph


def subject(graph, sampled=False, layers=2, dtype="float16", target="ascend"):
    record = GraphRecord(file="g.mindir", drafter=True, tree=None, sampled=sampled, inputs=[])
    return Subject(Manifest.model_construct(layers=layers, dtype=dtype, target=target), record, graph)


def broken(graph, **about):
    found = {}
    for rule in rules_for("ascend"):
        if places := list(rule.broken(subject(graph, **about))):
            found[rule.name] = places
    return found


def changed(graph):
    return MindIR(copy.deepcopy(graph.model).SerializeToString(), "planted")


def wrong(index=None, **construct):
    class Wrong(nn.Cell):
        def construct(self, x, at):
            return ops.gather(x, at if index is None else index, 0)

    at = Tensor(np.zeros(2, construct.get("dtype", np.int32)))
    return export_graph(Wrong(), (Tensor(np.zeros((3, 2), np.float32)), at))


@pytest.mark.parametrize("sampled", [False, True])
def test_cycles_for_ascend_keep_every_rule(graphs, greedy, sampled):
    graph = greedy
    if sampled:
        graph = stripped(export_graph(graphs.cycle(SHAPE, True), tuple(cycle_inputs(graphs).values())))
    assert broken(graph, sampled=sampled) == {}
    # The drafter's layer runs once a level: depth - 1 forwards, and the extension.
    assert graph.operators()["FlashAttentionScore"] == 2 + SHAPE.depth
    assert graph.constant_indices()


def test_prefill_attends_in_all_layers_but_the_last(graphs):
    graph = stripped(export_graph(graphs.prefill(), tuple(prefill_inputs(graphs).values())))
    assert broken(graph, sampled=None) == {}
    assert list(broken(graph, sampled=None, layers=3)) == ["FlashAttentionScore in every teacher layer"]


def plant_shape(graph):
    node = graph.find("MatMul")[0]
    shape = next(attribute for attribute in node.attribute if attribute.name == "shape")
    tensors = shape.tensors or shape.values[0].tensors
    tensors[0].dims[0] = -1


def plant_sparse_mode(graph):
    node = graph.find("FlashAttentionScore")[0]
    band = next(name for name, constant in graph.constants.items() if constant.i == 0 and constant.type == 7)
    node.input[17] = band


def plant_no_mask(graph):
    node = graph.find("FlashAttentionScore")[0]
    node.input[6] = node.input[5]


def plant_fewer(graph):
    name = graph.find("FlashAttentionScore")[0].op_type.removeprefix("REF::")
    node = next(n for n in graph.find("FlashAttentionScore") if "/teacher-Teacher/" in n.domain)
    node.op_type = next(p.name for p in graph.model.primitives if p.op_type == "Add" and p.name != name)


def plant_operator(name):
    def plant(graph):
        next(p for p in graph.model.primitives if p.op_type == "Mul").op_type = name

    return plant


def plant_values(graph):
    graph.model.graph.parameter[0].raw_data = bytes(8)


def plant_external(graph):
    graph.model.graph.parameter[0].external_data.location = "/etc/passwd"


def plant_float32(graph):
    weight = next(p for p in graph.model.graph.parameter if p.data_type == TensorProto.FLOAT16)
    weight.data_type = TensorProto.FLOAT


@pytest.mark.parametrize(
    ("plant", "rule", "said"),
    [
        (plant_shape, "static shapes", "MatMul in"),
        (plant_sparse_mode, "FlashAttentionScore in every teacher layer", "sparse_mode 0"),
        (plant_no_mask, "FlashAttentionScore in every teacher layer", "no full bool mask"),
        (plant_fewer, "FlashAttentionScore in every teacher layer", "1 of 2 attending layers"),
        (plant_operator("BatchMatMul"), "FlashAttentionScore in every teacher layer", "beside it"),
        (plant_operator("Custom"), "no operator without an Ascend kernel", "Custom is not among"),
        (plant_operator("FancyNewOp"), "no operator without an Ascend kernel", "FancyNewOp is not among"),
        (plant_operator("PyExecute"), "no code but ours", "operator PyExecute"),
        (plant_external, "no code but ours", "external data"),
        (plant_values, "weights are not in the graph", "holds 8 bytes"),
        (plant_float32, "float16 or bfloat16 weights", "is float32"),
    ],
)
def test_a_planted_violation_is_found(greedy, plant, rule, said):
    graph = changed(greedy)
    plant(graph)
    found = broken(MindIR(graph.data(), "planted"))
    assert any(said in place for place in found[rule])


def test_index_rules_find_what_they_are_for():
    assert "no negative constant index" in broken(wrong(Tensor(np.array([0, -1], np.int32))))
    assert any("int64" in place for place in broken(wrong(dtype=np.int64))["int32 indices"])
    good = broken(wrong(Tensor(np.array([0, 1], np.int32))))
    assert not {"int32 indices", "no negative constant index"} & set(good)
    assert any("float32" in p for p in broken(wrong(), dtype="float32")["float16 or bfloat16 weights"])


def test_rules_of_ascend_bind_no_other_target():
    assert [rule for rule in RULES if not rule.ascend] == list(rules_for("cpu"))
    assert len(rules_for("ascend")) == len(RULES)


def platforms(operator):
    """What MindSpore's own documentation says an operator runs on; None where it says nothing."""

    def named(text):
        found = re.search(r"Supported Platforms:\s*\n\s*(.*)", text or "")
        return found and found[1]

    primitive = getattr(operations, operator, None) or getattr(auto_generate, operator)
    told = [named(primitive.__doc__)]
    for path in re.findall(r":func:`mindspore\.([\w.]+)`", primitive.__doc__ or ""):
        module, _, name = path.partition(".")
        place = {"ops": ops, "mint": mint, "Tensor": Tensor}.get(module)
        told.append(named(getattr(getattr(place, name, None), "__doc__", None)))
    return next(filter(None, told), None)


def test_table_of_operators_agrees_with_their_documentation():
    silent = {operator for operator in ON_ASCEND if platforms(operator) is None}
    assert silent == {"ClampScalar", "Muls", "SumExt"}  # the forms that clamp, mul and sum have in a graph
    assert all("Ascend" in platforms(operator) for operator in ON_ASCEND - silent)
    assert not ON_ASCEND & STRUCTURE


def test_export_for_ascend_needs_no_npu(tmp_path):
    model = tiny_eagle.model_dir("openpangu", tmp_path, head_dim=16)
    config = tiny_eagle.config(model, None, ["model.dtype=bfloat16"])
    export_bundle(config, "ascend", tmp_path / "b", QUIET, randomly=Randomly(layers=3))
    found = inspect(Bundle.open(tmp_path / "b"))
    assert found.passed
    assert found.weights["BF16"] > 0
    told = "\n".join(lines(found))
    assert "RANDOM WEIGHTS: drawn at random, for trying an export; 3 layers" in told
    assert "ok     FlashAttentionScore in every teacher layer" in told


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("1b", None), ("7b", 7)])
def test_pangu_shapes_export_for_ascend(name, layers, tmp_path):
    source = pangu_shapes.directory(name, tmp_path)
    path = CONFIGS / f"openpangu_embedded_{name}.yaml"
    config = load_config(path, [f"model.source={source}", "drafter.kind=eagle3"])
    export_bundle(config, "ascend", tmp_path / "b", QUIET, randomly=Randomly(layers))
    found = inspect(Bundle.open(tmp_path / "b"))
    (tmp_path / "b" / WEIGHTS).unlink()
    assert found.passed, "\n".join(lines(found))
    assert found.manifest.layers == (layers or pangu_shapes.SHAPES[name]["num_hidden_layers"])
