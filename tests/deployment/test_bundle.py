"""What a bundle must not be: damaged, contradictory, or a way to run somebody else's code."""

import shutil

import pytest
from support.damage import cut, flip, rewrite

from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.graphs import read_graphs, refuse_code
from ms_eagle.deployment.manifest import FILE, check_numbers, read_manifest
from ms_eagle.deployment.mindir import MindIR
from ms_eagle.errors import UserError
from ms_eagle.system import files


def swap(bundle):
    one, two = (bundle / f"cycle-{name}-greedy.mindir" for name in ("teacher", "4x2x2"))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: (b / FILE).unlink(), "holds no manifest.json"),
        (lambda b: cut(b / FILE), "not valid JSON"),
        (lambda b: rewrite(b, lambda m: m.update(schema_version=99)), "found schema_version 99, expected"),
        (lambda b: rewrite(b, lambda m: m.pop("states")), "states: Field required"),
        (lambda b: rewrite(b, lambda m: m["files"][0].update(name="../x")), "a path inside the bundle"),
        (lambda b: rewrite(b, lambda m: m["files"].clear()), "lists no weights.safetensors"),
        (lambda b: cut(b / WEIGHTS), "it is truncated or of another bundle"),
        (lambda b: (b / "tokenizer" / "tokenizer.json").unlink(), "is missing"),
        (lambda b: cut(b / "prefill-drafter.mindir"), "it is truncated"),
        (lambda b: flip(b / "cycle-6x3x3-sampled.mindir"), "does not match its hash"),
        (lambda b: flip(b / "kernels" / "ops.cc"), "does not match its hash"),
        (swap, "it is truncated or of another bundle"),
        (
            lambda b: (b / "tokenizer" / "chat_template.jinja").write_text("x"),
            "does not belong to the bundle",
        ),
        (lambda b: (b / "kernels" / "more.cc").write_text("int x;"), "does not belong to the bundle"),
    ],
)
def test_damaged_bundles_are_refused(copy, damage, message):
    damage(copy)
    with pytest.raises(UserError, match=message):
        Bundle.open(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(chunk=m["chunk"] + 1),
        lambda m: m.update(capacity=m["capacity"] + 1),
        lambda m: m.update(positions=m["positions"] + 1),
        lambda m: m.update(batch=2),
        lambda m: m.update(layers=3),
        lambda m: m.update(vocab_size=10),
        lambda m: m["slots"].update(drafter=7),
        lambda m: m["trees"][0].update(budget=7),
        lambda m: m["states"][0]["shape"].__setitem__(0, 1),
        lambda m: m["states"].pop(),
        lambda m: m["graphs"][0]["inputs"].pop(),
        lambda m: m["graphs"][2]["inputs"][-2]["shape"].__setitem__(1, 3),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(made, tmp_path, change):
    shutil.copy(made / FILE, tmp_path / FILE)
    check_numbers(tmp_path, read_manifest(tmp_path))
    rewrite(tmp_path, change)
    with pytest.raises(UserError, match="by its other numbers"):
        check_numbers(tmp_path, read_manifest(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["states"][0]["shape"].__setitem__(1, 10**9), r"no graph has .* teacher\.cache\.key\.0"),
        (lambda m: m["graphs"][0]["inputs"][-1]["shape"].__setitem__(1, 5), "takes other inputs"),
    ],
)
def test_numbers_that_are_not_the_graphs_are_refused(copy, change, message):
    rewrite(copy, change)
    with pytest.raises(UserError, match=message):
        read_graphs(Bundle.open(copy))


def test_kernel_sources_of_somebody_else_run_only_if_trusted(copy):
    assert Bundle.open(copy).foreign_kernels() is None
    source = copy / "kernels" / "ops.cc"
    source.write_bytes(source.read_bytes() + b"// mine\n")
    record = {"bytes": source.stat().st_size, "sha256": files.sha256(source)}
    rewrite(copy, lambda m: next(f for f in m["files"] if f["name"] == "kernels/ops.cc").update(record))
    with pytest.raises(UserError, match="not this version's own code"):
        Bundle.open(copy)
    digest = Bundle.open(copy, trust=True).foreign_kernels()
    assert Bundle.open(copy, trust=digest).foreign_kernels() == digest
    with pytest.raises(UserError, match=f"--trust {digest}"):
        Bundle.open(copy, trust="0" * 64)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("func_name", "/tmp/evil.so:AttendRows", "custom operator '/tmp/evil.so:AttendRows'"),
        ("func_name", "ms_eagle:a/../b:AttendRows", "custom operator"),
        ("func_name", "ms_eagle:system", "custom operator 'ms_eagle:system'"),
        ("func_type", "pyfunc", r"\(pyfunc\)"),
        ("imply_path", "/tmp/evil.py", "custom operator"),
        ("reg_info", "{}", "custom operator"),
        (None, "PyExecute", "operator PyExecute"),
        (None, "SomethingNew", "operator SomethingNew"),
    ],
)
def test_foreign_code_in_a_graph_is_refused(made, attribute, value, message):
    graph = MindIR.read(made / "prefill-teacher.mindir")
    refuse_code(graph, native=True)
    primitive = next(each for each in graph.model.primitives if each.op_type == "Custom")
    if attribute is None:
        primitive.op_type = value
    else:
        known = [each for each in primitive.attribute if each.name == attribute]
        (known or [primitive.attribute.add(name=attribute)])[0].s = value.encode()
    with pytest.raises(UserError, match=message):
        refuse_code(graph, native=True)


@pytest.mark.parametrize("operator", ["Custom", "Reshape", "S-Prim-add", "REF::Custom:nowhere"])
@pytest.mark.parametrize("inside", ["the graph", "a function"])
def test_a_node_that_passes_the_table_of_operators_by_is_refused_by_name(made, operator, inside):
    graph = MindIR.read(made / "prefill-teacher.mindir")
    part = graph.model.graph if inside == "the graph" else graph.model.functions.add(name="f")
    node = part.node.add(op_type=operator, name="n", output=["n"])
    for name, value in {"func_type": "aot", "func_name": "ms_eagle:AttendRows"}.items():
        node.attribute.add(name=name, s=value.encode())
    with pytest.raises(UserError, match=f"a node '{operator}'"):
        refuse_code(MindIR(graph.data(), "planted"), native=True)


def test_an_entry_of_the_table_of_operators_is_there_once(made):
    graph = MindIR.read(made / "prefill-teacher.mindir")
    graph.model.primitives.add().CopyFrom(graph.model.primitives[0])
    with pytest.raises(UserError, match="no entry of its table"):
        refuse_code(graph, native=True)


def test_native_kernels_have_no_place_where_none_are_built(made):
    with pytest.raises(UserError, match="native kernels, which the target has not"):
        refuse_code(MindIR.read(made / "prefill-teacher.mindir"), native=False)
    with pytest.raises(UserError, match="is not a readable MINDIR"):
        MindIR(b"\x07nothing", "here")
