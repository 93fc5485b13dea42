"""Operators that a graph for Ascend may have: each is documented for Ascend in MindSpore 2.9."""

STRUCTURE = frozenset(
    {
        "Constant",
        "Depend",
        "Load",
        "MakeTuple",
        "Return",
        "TupleGetItem",
        "UpdateState",
        "make_list",
        "make_tuple",
        # On sizes that are constants: folded before anything runs.
        "EqScalar",
        "LessScalar",
    }
)
"""What only ties nodes together, or is worked out while a graph is compiled."""

ON_ASCEND = frozenset(
    {
        "Add",
        "ArgMaxWithValue",
        "Assign",
        "BroadcastTo",
        "Cast",
        "ClampScalar",
        "Concat",
        "CumSum",
        "Div",
        "Equal",
        "ExpandDims",
        "FlashAttentionScore",
        "Gather",
        "GatherD",
        "Greater",
        "GreaterEqual",
        "IsNan",
        "Less",
        "LessEqual",
        "LogSoftmax",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "MatMul",
        "Maximum",
        "Minimum",
        "Mul",
        "Muls",
        "Neg",
        "NotEqual",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "RightShift",
        "Rsqrt",
        "ScatterNd",
        "ScatterUpdate",
        "SearchSorted",
        "Select",
        "SiLU",
        "Stack",
        "StridedSlice",
        "Sub",
        "SumExt",
        "Tile",
        "TopK",
        "Transpose",
    }
)
"""Operators with a kernel."""

ON_CPU = ON_ASCEND | {"BatchMatMul", "MaskedFill", "Softmax", "TensorScatterElements"}
"""Operators of a bundle for the CPU beside our own kernels: plain arithmetic, no code, no files."""
