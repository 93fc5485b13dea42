"""What the graphs of a bundle must be, and where one is not: each rule looks at the parsed protobuf.

The first rules hold for every target; those of Ascend are what FlashAttentionScore asks of an NPU's graph.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mindspore.train.mind_ir_pb2 import NodeProto

from ms_eagle.deployment.manifest import GraphRecord, Manifest
from ms_eagle.deployment.mindir import INDEX_INPUTS, MindIR, code_in, integers
from ms_eagle.deployment.operators import ON_ASCEND, STRUCTURE

# Inputs of FlashAttentionScore (mindspore 2.9, FlashAttentionScore), and the numbers its enumerations have.
_KEY, _MASK, _LAYOUT, _SPARSE_MODE = 1, 6, 16, 17
_BNSD, _FULL_MASK = 1, 1
_TEACHER = "/teacher-Teacher/"  # in the path of the Cell that a node comes from
_HALVES = ("float16", "bfloat16")
_TABLES = (".cos", ".sin")  # rotation works in float32 whatever the weights are


@dataclass(frozen=True)
class Subject:
    """One graph under inspection: its record, its protobuf, and the bundle's manifest."""

    manifest: Manifest
    record: GraphRecord
    graph: MindIR


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: short, for a table.
        ascend: holds for bundles for Ascend only.
        broken: the places where a graph breaks it, in words; none where it holds.
    """

    name: str
    ascend: bool
    broken: Callable[[Subject], Iterator[str]]


def no_foreign_code(subject: Subject) -> Iterator[str]:
    """Nothing runs but MindSpore's operators and our kernels; nothing is read from other files."""
    yield from code_in(subject.graph)


def weights_once(subject: Subject) -> Iterator[str]:
    """No Parameter's values are in the graph: they are in the weights file, once."""
    for parameter in subject.graph.model.graph.parameter:
        if parameter.raw_data or parameter.float_data or parameter.int32_data:
            yield f"{parameter.name} holds {len(parameter.raw_data)} bytes of values"


def static_shapes(subject: Subject) -> Iterator[str]:
    """Every size of every result is known."""
    for node in subject.graph.nodes:
        for attribute in node.attribute:
            if attribute.name == "shape" and any(size < 0 for size in _sizes(attribute)):
                yield f"{_where(subject, node)} gives {_sizes(attribute)}"


def int32_indices(subject: Subject) -> Iterator[str]:
    """Whatever a gather or scatter takes as indices is int32."""
    values = subject.graph.values()
    for node in subject.graph.nodes:
        operator = subject.graph.operator(node)
        for place in INDEX_INPUTS.get(operator, ()):
            found = values.get(node.input[place])
            # Begin and end of a slice are constants: MindSpore keeps them as tuples of its own int64.
            if operator in ("StridedSlice", "Slice") and node.input[place] in subject.graph.constants:
                continue
            if found is None or found.dtype != "int32":
                yield f"{_where(subject, node)} takes {'no tensor' if found is None else found.dtype}"


def no_negative_index(subject: Subject) -> Iterator[str]:
    """No constant index is negative: on Ascend that is undefined and may be silently wrong."""
    for node, numbers in subject.graph.index_constants():
        if min(numbers, default=0) < 0:
            yield f"{_where(subject, node)} takes {min(numbers)}"


def half_weights(subject: Subject) -> Iterator[str]:
    """Weights and caches are float16 or bfloat16, all the same; rotary tables stay float32."""
    wanted = subject.manifest.dtype
    if wanted not in _HALVES:
        yield f"the manifest says {wanted}"
    for parameter in subject.graph.parameters():
        table = parameter.name.endswith(_TABLES)
        if parameter.dtype.startswith(("float", "bfloat")) and not table and parameter.dtype != wanted:
            yield f"{parameter.name} is {parameter.dtype}"


def fused_attention(subject: Subject) -> Iterator[str]:
    """One FlashAttentionScore for each teacher layer, with a full bool mask, and no other attention.

    A prefill makes no logits: all it wants of the last layer are K and V, so that layer attends to nothing.
    """
    graph = subject.graph
    nodes = [node for node in graph.find("FlashAttentionScore") if _TEACHER in node.domain]
    wanted = subject.manifest.layers - (subject.record.sampled is None)
    if len(nodes) != wanted:
        yield f"{len(nodes)} of {wanted} attending layers of the teacher have one"
    values = graph.values()
    for node in graph.find("FlashAttentionScore"):
        layout, mode = (_number(graph, node.input[place]) for place in (_LAYOUT, _SPARSE_MODE))
        if (layout, mode) != (_BNSD, _FULL_MASK):
            yield f"{_where(subject, node)} has input_layout {layout} and sparse_mode {mode}"
        mask, key = values.get(node.input[_MASK]), values.get(node.input[_KEY])
        full = mask is not None and key is not None and len(mask.shape) == 4 and mask.dtype == "bool"
        if not full or mask.shape[3] != key.shape[2]:
            yield f"{_where(subject, node)} has no full bool mask: {mask}"
    for operator in ("BatchMatMul", "Softmax", "SoftmaxV2"):
        yield from (f"{_where(subject, node)} beside it" for node in graph.find(operator))


def known_on_ascend(subject: Subject) -> Iterator[str]:
    """Every operator has an Ascend kernel by MindSpore's documentation."""
    for operator in sorted(subject.graph.operators()):
        if operator not in ON_ASCEND and operator not in STRUCTURE:
            yield f"{operator} is not among the operators known to run on Ascend"


RULES = (
    Rule("no code but ours", False, no_foreign_code),
    Rule("weights are not in the graph", False, weights_once),
    Rule("static shapes", False, static_shapes),
    Rule("int32 indices", False, int32_indices),
    Rule("no negative constant index", False, no_negative_index),
    Rule("float16 or bfloat16 weights", True, half_weights),
    Rule("FlashAttentionScore in every teacher layer", True, fused_attention),
    Rule("no operator without an Ascend kernel", True, known_on_ascend),
)


def rules_for(target: str) -> tuple[Rule, ...]:
    """The rules that a target's bundles keep."""
    return tuple(rule for rule in RULES if target == "ascend" or not rule.ascend)


def _where(subject: Subject, node: NodeProto) -> str:
    """A node by its operator and the last parts of its Cell's path."""
    parts = node.domain.split("/")
    return f"{subject.graph.operator(node)} in {'/'.join(parts[max(0, len(parts) - 3) :]) or 'the graph'}"


def _sizes(attribute) -> list[int]:
    found = [size for tensor in attribute.tensors for size in tensor.dims]
    for value in attribute.values:
        found += _sizes(value)
    return found


def _number(graph: MindIR, name: str) -> int | None:
    found = integers(graph.constants[name]) if name in graph.constants else []
    return found[0] if len(found) == 1 else None
