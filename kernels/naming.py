"""Which library the kernels of a stored graph belong to.

A graph names each kernel ``library:Function``. One that is kept, in a bundle or in the compile cache, says
``ms_eagle:Function``; the library of the process that takes it up is put there when it is loaded, so that a
graph runs wherever it is brought, and never another place's code.
"""

from pathlib import Path

from mindspore.train.mind_ir_pb2 import ModelProto

PLACEHOLDER = "ms_eagle"


def name_library(
    model: ModelProto,  # pyright: ignore[reportInvalidTypeForm]: made when it is imported
    library: Path | str = PLACEHOLDER,
) -> None:
    """Let every kernel of a graph be of ``library``, whatever it was of before."""
    for primitive in model.primitives:
        if primitive.op_type != "Custom":
            continue
        for attribute in primitive.attribute:
            function = attribute.s.decode(errors="replace").rpartition(":")[2]
            if attribute.name == "func_name":
                attribute.s = f"{library}:{function}".encode()
            if attribute.name == "uniq_name":
                attribute.s = f"Custom_{library}:{function}".encode()
