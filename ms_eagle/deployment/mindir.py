"""MINDIR files as protobuf: what a graph is made of, and the changes that a bundle's graphs go through.

A bundle's graph has no weights in it: its Parameters carry names, shapes and number formats only, and are
given their memory when it is loaded. Its native kernels belong to no library, see ``kernels.naming``.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from mindspore.train import mind_ir_pb2

from ms_eagle.deployment.operators import ON_CPU, STRUCTURE
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import operator_names
from ms_eagle.kernels.naming import PLACEHOLDER, name_library

# Where an operator takes indices.
INDEX_INPUTS = {
    "Gather": (1,),
    "GatherD": (2,),
    "GatherNd": (1,),
    "ScatterUpdate": (1,),
    "ScatterNd": (0,),
    "ScatterNdUpdate": (1,),
    "TensorScatterElements": (1,),
    "TensorScatterUpdate": (1,),
    "StridedSlice": (1, 2),
    "Slice": (1,),
}
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
_NUMPY = {1: np.float32, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}
_REFERENCE = "REF::"  # a node's operator by its name in the table of primitives, or of functions
_CUSTOM_ATTRIBUTES = frozenset(
    ("imply_path", "uniq_name", "multi_output", "func_type", "func_name", "autodiff", "side_effect_mem")
)


@dataclass(frozen=True)
class Parameter:
    """A Parameter of a graph: name, number format, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor that a node gives: number format and shape, negative where a size is not known."""

    dtype: str
    shape: tuple[int, ...]


class MindIR:
    """A parsed graph.

    Attributes:
        model: the protobuf message.
        nodes: of the graph and its functions.
        constants: the attribute that holds a constant, by the name of its value.
    """

    def __init__(self, data: bytes, where: str) -> None:
        """Parse.

        Args:
            data: a whole file.
            where: names it in errors.

        Raises:
            UserError: it is not a MINDIR.
        """
        self.where = where
        self.model = mind_ir_pb2.ModelProto()
        try:
            self.model.ParseFromString(data)
        except DecodeError as error:
            raise UserError(f"{where} is not a readable MINDIR; restore it or export again") from error
        if not self.model.graph.node:
            raise UserError(f"{where} holds no graph; expected a MINDIR of tools/export.py")
        self._names = {primitive.name: primitive.op_type for primitive in self.model.primitives}
        self.nodes = [node for graph in self._graphs() for node in graph.node]
        self.constants = {
            node.output[0]: node.attribute[0] for node in self.nodes if node.op_type == "Constant"
        }

    @classmethod
    def read(cls, path: Path) -> "MindIR":
        """Parse a file."""
        return cls(path.read_bytes(), str(path))

    def _graphs(self) -> tuple:
        return (self.model.graph, *self.model.functions)

    def operator(self, node: mind_ir_pb2.NodeProto) -> str:
        """A node's operator; nodes refer to the table of primitives."""
        return self._names.get(node.op_type.removeprefix(_REFERENCE), node.op_type)

    def operators(self) -> Counter:
        """How often each operator occurs."""
        return Counter(self.operator(node) for node in self.nodes)

    def find(self, operator: str) -> list:
        """All nodes of one operator."""
        return [node for node in self.nodes if self.operator(node) == operator]

    def parameters(self) -> list[Parameter]:
        """Every Parameter."""
        return [
            Parameter(
                _plain(each.name),
                _DTYPES.get(each.data_type, f"type {each.data_type}"),
                tuple(each.dims),
            )
            for graph in self._graphs()
            for each in graph.parameter
        ]

    def inputs(self) -> list[Parameter]:
        """What a call takes, in order."""
        return [
            Parameter(_plain(each.name), value.dtype, value.shape)
            for each in self.model.graph.input
            for value in _values(each.tensor)
        ]

    def values(self) -> dict[str, Value]:
        """Every single tensor of the graph by the name that nodes take it under."""
        known = {
            each.name: Value(_DTYPES.get(each.data_type, "other"), tuple(each.dims))
            for graph in self._graphs()
            for each in graph.parameter
        }
        for graph in self._graphs():
            known |= {each.name: value for each in graph.input for value in _values(each.tensor)}
        for node in self.nodes:
            for attribute in node.attribute:
                found = list(_values(_tensors(attribute)))
                if len(found) == 1 and (attribute.name == "shape" or node.op_type == "Constant"):
                    known[node.output[0]] = found[0]
        for node in self.find("Load"):  # reads a Parameter
            known.setdefault(node.output[0], known.get(node.input[0], Value("other", ())))
        return known

    def constant_indices(self) -> list[int]:
        """Every constant number that a gather, scatter or slice of the graph is given as an index."""
        return [number for _, numbers in self.index_constants() for number in numbers]

    def index_constants(self) -> Iterator[tuple[mind_ir_pb2.NodeProto, list[int]]]:
        """The nodes that take constants as indices, and these."""
        for node in self.nodes:
            for place in INDEX_INPUTS.get(self.operator(node), ()):
                if node.input[place] in self.constants:
                    yield node, integers(self.constants[node.input[place]])

    def dimensions(self) -> list[int]:
        """Every dimension of every node's result; a dynamic one is negative."""
        return [
            dim
            for node in self.nodes
            for attribute in node.attribute
            if attribute.name == "shape"
            for tensor in _tensors(attribute)
            for dim in tensor.dims
        ]

    def data(self) -> bytes:
        """The file's content."""
        return self.model.SerializeToString(deterministic=True)


def strip(graph: MindIR, names: Mapping[str, str]) -> None:
    """Take everything out of a fresh export that does not belong into a bundle.

    That is also what differs between two exports of one configuration: MindSpore names values by counters of
    the process, leaves its operators in the order of their addresses, and notes the time.

    Args:
        graph: is changed: Parameters are renamed and hold no data, native kernels lose their library, values
            are numbered.
        names: what the bundle calls each Parameter.
    """
    parts = graph._graphs()
    scopes = {part.name: f"graph{number}" for number, part in enumerate(parts)}
    renamed = dict(scopes)
    for part in parts:
        for parameter in part.parameter:
            parameter.ref_key = names[_plain(parameter.name)]
            renamed[parameter.name] = f"{scopes[part.name]}:{parameter.ref_key}"
            parameter.ClearField("raw_data")
            parameter.ClearField("external_data")
        renamed |= {each.name: f"{scopes[part.name]}:{_plain(each.name)}" for each in part.input}
        for value in (value for node in part.node for value in node.output):
            place = f"{scopes[part.name]}:value:" if ":" in value else "constant"
            renamed[value] = f"{place}{len(renamed)}"
    for part in parts:
        for node in part.node:
            function = node.op_type.removeprefix(_REFERENCE)
            if function in scopes:
                node.op_type = _REFERENCE + scopes[function]
            node.input[:] = [renamed.get(value, value) for value in node.input]
            node.output[:] = [renamed[value] for value in node.output]
        for each in (part, *part.parameter, *part.input, *part.output, *part.node):
            each.name = renamed.get(each.name, each.name)
        lasting = [attribute for attribute in part.attribute if attribute.name != "compile_phase"]
        del part.attribute[:]
        part.attribute.extend(lasting)
    graph.model.primitives.sort(key=lambda primitive: primitive.name)
    name_library(graph.model)


def code_in(graph: MindIR) -> list[str]:
    """What in a graph could run code that is not ours or read files, in words; a bundle has nothing such.

    Every node of every function is a constant or names its operator in the one table, which holds nothing but
    the operators that bundles are made of and our own kernels, called ``ms_eagle:Name``.
    """
    places = Counter(each.name for each in (*graph.model.primitives, *graph.model.functions))
    faults = [
        f"a node {node.op_type!r} that is no entry of its table of operators"
        for node in graph.nodes
        if node.op_type != "Constant"
        and not (node.op_type.startswith(_REFERENCE) and places[node.op_type[len(_REFERENCE) :]] == 1)
    ]
    kernels = operator_names()
    for primitive in graph.model.primitives:
        if primitive.op_type == "Custom":
            faults += _custom_faults(primitive, kernels)
        elif primitive.op_type not in STRUCTURE | ON_CPU:
            faults.append(f"operator {primitive.op_type}")
    tensors = [each for part in graph._graphs() for each in part.parameter]
    tensors += [each for node in graph.nodes for part in node.attribute for each in _tensors(part)]
    faults += [f"external data of {_plain(each.name)}" for each in tensors if each.external_data.location]
    faults += [f"the file {part.bprop_filepath}" for part in graph._graphs() if part.bprop_filepath]
    if graph.model.HasField("preprocessor"):
        faults.append("a preprocessor")
    return list(dict.fromkeys(faults))


def _custom_faults(primitive: mind_ir_pb2.PrimitiveProto, kernels: Collection[str]) -> list[str]:
    texts = {attribute.name: _text(attribute.s) for attribute in primitive.attribute}
    place, _, function = texts.get("func_name", "").partition(":")
    known = len(texts) == len(primitive.attribute) and texts.keys() <= _CUSTOM_ATTRIBUTES
    ours = place == PLACEHOLDER and function in kernels
    if known and ours and texts.get("func_type") == "aot" and not texts.get("imply_path"):
        return []
    return [f"custom operator {texts.get('func_name')!r} ({texts.get('func_type')})"]


def integers(attribute: mind_ir_pb2.AttributeProto) -> list[int]:
    """The integers of a constant: a number, a tuple of them, or a tensor."""
    found = [attribute.i] if attribute.type in (attribute.INT64, attribute.INT32) else []
    for value in attribute.values:
        found += integers(value)
    for tensor in attribute.tensors:
        if tensor.data_type in _NUMPY:
            found += np.frombuffer(tensor.raw_data, _NUMPY[tensor.data_type]).astype(np.int64).tolist()
    return found


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _plain(name: str) -> str:
    """A Parameter's name without the number of its graph."""
    return name.rpartition(":")[2]


def _tensors(attribute: mind_ir_pb2.AttributeProto) -> Iterator[mind_ir_pb2.TensorProto]:
    yield from attribute.tensors
    for value in attribute.values:
        yield from _tensors(value)


def _values(tensors: Iterable[mind_ir_pb2.TensorProto]) -> Iterator[Value]:
    for tensor in tensors:
        yield Value(_DTYPES.get(tensor.data_type, "other"), tuple(tensor.dims))
