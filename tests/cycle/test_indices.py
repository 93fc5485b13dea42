"""Whole runs, eagerly, with every index handed to a gather or scatter checked on its way."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from support import tiny, tiny_engine

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.models.commit import FastReorder, FullReorder
from ms_eagle.reference.invariants import check_indices
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

# Function: (place of the data, place of the indices, which axis the indices run over).
CHECKED = {
    "gather": (0, 1, lambda arguments: arguments[2]),
    "gather_d": (0, 2, lambda arguments: arguments[1]),
    "scatter_update": (0, 1, lambda arguments: 0),
    "tensor_scatter_elements": (0, 1, lambda arguments: arguments[3]),
}


@contextlib.contextmanager
def watched(monkeypatch):
    """Eager execution with the checks in place; yields how often each function was seen."""
    counts = dict.fromkeys([*CHECKED, "scatter_nd"], 0)

    def watch(name, original, bound):
        def checked(*arguments):
            counts[name] += 1
            indices, upper = bound(arguments)
            check_indices(name, indices.asnumpy(), upper)
            return original(*arguments)

        monkeypatch.setattr(ops, name, checked)

    for name, (data, index, axis) in CHECKED.items():

        def bound(arguments, data=data, index=index, axis=axis):
            return arguments[index], arguments[data].shape[axis(arguments)]

        watch(name, getattr(ops, name), bound)
    watch("scatter_nd", ops.scatter_nd, lambda arguments: (arguments[0], arguments[2][0]))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield counts
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


@pytest.mark.parametrize(
    ("reorder", "sampling"),
    [
        (FullReorder, SamplingParams()),
        (FastReorder, SamplingParams(temperature=1.0, repetition_penalty=1.2)),
    ],
)
def test_no_index_leaves_its_range(monkeypatch, reorder, sampling):
    model = tiny.make("llama", seed=3)
    head = tiny_engine.random_head(model, draft_vocabulary=96)
    engine = tiny_engine.eagle(
        model,
        TreeShape(3, 2, 2),
        batch=2,
        head=head,
        reorder=reorder,
        capacity=10,
        chunk=4,
        backend=tiny_engine.EAGER,
    )
    prompts = tiny_engine.prompts(7, 9)  # short: eager execution takes seconds a cycle
    with watched(monkeypatch) as counts:
        options = GenerationOptions(30, sampling, ignore_eos=True)
        completions = engine.generate(prompts, options)
        assert [c.new_tokens for c in completions] == [3, 1]  # each up to the last slot
    assert min(counts[name] for name in ("gather", "gather_d", "scatter_update")) > 10


def test_the_hook_catches_an_index(monkeypatch):
    from ms_eagle.reference.invariants import InvariantError

    with watched(monkeypatch), pytest.raises(InvariantError, match="gather"):
        ops.gather(ms.Tensor(np.zeros((3, 2), np.float32)), ms.Tensor(np.array([0, 3], np.int32)), 0)
