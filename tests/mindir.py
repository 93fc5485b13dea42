"""Reading exported MINDIR files as protobuf: operators, constants and shapes of every node."""

from collections import Counter
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore.train import mind_ir_pb2

# Where an operator takes indices.
_INDEX_INPUTS = {
    "Gather": (1,),
    "GatherD": (2,),
    "GatherNd": (1,),
    "ScatterUpdate": (1,),
    "ScatterNdUpdate": (1,),
    "TensorScatterElements": (1,),
    "TensorScatterUpdate": (1,),
    "StridedSlice": (1, 2),
    "Slice": (1,),
}
_NUMPY = {1: np.float32, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}


class MindIR:
    """A parsed graph."""

    def __init__(self, path: Path) -> None:
        model = mind_ir_pb2.ModelProto()
        model.ParseFromString(path.read_bytes())
        self.names = {primitive.name: primitive.op_type for primitive in model.primitives}
        self.nodes = [node for graph in (model.graph, *model.functions) for node in graph.node]
        self.constants = {
            node.output[0]: node.attribute[0] for node in self.nodes if node.op_type == "Constant"
        }

    def operator(self, node) -> str:
        """A node's operator; nodes refer to the table of primitives."""
        return self.names.get(node.op_type.removeprefix("REF::"), node.op_type)

    def operators(self) -> Counter:
        """How often each operator occurs."""
        return Counter(self.operator(node) for node in self.nodes)

    def find(self, operator: str) -> list:
        """All nodes of one operator."""
        return [node for node in self.nodes if self.operator(node) == operator]

    def constant_indices(self) -> list[int]:
        """Every constant number that a gather, scatter or slice of the graph is given as an index."""
        return [
            number
            for node in self.nodes
            for place in _INDEX_INPUTS.get(self.operator(node), ())
            if node.input[place] in self.constants
            for number in _integers(self.constants[node.input[place]])
        ]

    def dimensions(self) -> list[int]:
        """Every dimension of every node's result; a dynamic one is negative."""

        def tensors(attribute):
            yield from attribute.tensors
            for value in attribute.values:
                yield from tensors(value)

        return [
            dim
            for node in self.nodes
            for attribute in node.attribute
            if attribute.name == "shape"
            for tensor in tensors(attribute)
            for dim in tensor.dims
        ]


def _integers(attribute) -> list[int]:
    """The integers of a constant: a number, a tuple of them, or a tensor."""
    found = [attribute.i] if attribute.type == attribute.INT64 else []
    for value in attribute.values:
        found += _integers(value)
    for tensor in attribute.tensors:
        found += np.frombuffer(tensor.raw_data, _NUMPY[tensor.data_type]).astype(np.int64).tolist()
    return found


def export(cell, inputs, directory: Path) -> MindIR:
    """Export a Cell for the given example inputs and parse what was written."""
    ms.export(cell, *inputs, file_name=str(directory / "graph"), file_format="MINDIR")
    return MindIR(directory / "graph.mindir")
