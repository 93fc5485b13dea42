"""Reading exported MINDIR files as protobuf: operators, constants and shapes of every node."""

from collections import Counter
from pathlib import Path

import mindspore as ms
from mindspore.train import mind_ir_pb2


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


def export(cell, inputs, directory: Path) -> MindIR:
    """Export a Cell for the given example inputs and parse what was written."""
    ms.export(cell, *inputs, file_name=str(directory / "graph"), file_format="MINDIR")
    return MindIR(directory / "graph.mindir")
