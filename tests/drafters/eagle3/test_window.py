"""The drafter's window: both forms of what rows see, and a drafter that uses it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor
from support import tiny_eagle

from ms_eagle.drafters.eagle3.window import windowed
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.models.reading import windows

SLOTS = 24
WINDOW = "drafter.window="


def as_mask(lists):
    """The same as lists, ``[B, 1, N, S]``, by a plain loop."""
    batch, rows, _ = lists.shape
    mask = np.ones((batch, 1, rows, SLOTS), bool)
    for b, r in np.ndindex(batch, rows):
        prefix, count = lists[b, r, :2]
        mask[b, 0, r, :prefix] = False
        mask[b, 0, r, lists[b, r, 2 : 2 + count]] = False
    return mask


@st.composite
def levels(draw):
    """Rows of a level of a tree after ``n`` committed slots: their lists and positions."""
    n, level, rows = draw(st.integers(0, 12)), draw(st.integers(0, 3)), 3
    room = 4
    lists = np.zeros((1, rows, 2 + room), np.int32)
    for r in range(rows):
        ancestors = [n + l * rows + draw(st.integers(0, rows - 1)) for l in range(level)]  # noqa: E741
        own = [*ancestors, n + level * rows + r][:room]
        lists[0, r, :2] = n, len(own)
        lists[0, r, 2 : 2 + len(own)] = own
    return lists, np.full((1, rows), n + level, np.int32), n


@settings(max_examples=40, deadline=None)
@given(levels(), st.sampled_from([4, 6, 30]))
def test_lists_and_masks_are_cut_alike(rows, window):
    lists, positions, n = rows
    wanted = as_mask(lists)
    oldest = max(0, int(positions[0, 0]) + 1 - window)
    wanted[..., : min(oldest, n)] = True
    place = Tensor(positions)
    np.testing.assert_array_equal(windowed(Tensor(as_mask(lists)), place, window).asnumpy(), wanted)
    cut = windowed(Tensor(lists), place, window).asnumpy()
    assert cut.shape[2] == lists.shape[2] + window
    assert ((cut >= 0) & (cut < SLOTS + window)).all()
    np.testing.assert_array_equal(as_mask(cut), wanted)


def test_a_chunk_sees_its_window():
    lists = np.zeros((1, 4, 3), np.int32)
    lists[0, :, 0] = [6, 7, 8, 9]  # rows at positions 5, 6, 7, 8 see all up to themselves
    cut = windowed(Tensor(lists), Tensor(np.array([[5, 6, 7, 8]], np.int32)), 4).asnumpy()
    seen = [sorted(row[2 : 2 + row[1]].tolist()) for row in cut[0]]
    assert seen == [[2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_eagle.model_dir("qwen3", tmp_path_factory.mktemp("window"))


@pytest.fixture(scope="module")
def head(model):
    return tiny_eagle.head_dir(model, model.parent, logits=20.0)


def drafted(model, head, *overrides):
    """An answer, its accepted tokens, and the drafter's state after a prompt of 40 tokens."""
    engine = tiny_eagle.engine(model, head, overrides)
    prompt = np.random.default_rng(0).integers(3, 90, 40).tolist()
    (completion,) = engine.generate([prompt], GenerationOptions(6, ignore_eos=True))
    graphs, state = engine.graphs, engine.graphs.empty()
    chunks = windows([prompt], np.zeros(1, np.int32), np.array([39]), graphs.facts.sizes.chunk)
    for chunk, start, count in chunks:
        state = graphs.prefill()(Tensor(chunk), Tensor(start), Tensor(count), state)
    return completion.token_ids, completion.accept_L, state.asnumpy()


def test_a_window_over_everything_changes_nothing_and_no_window_changes_the_answer(model, head):
    whole, wide, narrow = (drafted(model, head, *each) for each in ((), [f"{WINDOW}96"], [f"{WINDOW}4"]))
    assert wide[:2] == whole[:2]
    np.testing.assert_allclose(wide[2], whole[2], atol=1e-5)
    assert narrow[0] == whole[0]
    assert np.abs(narrow[2] - whole[2]).max() > 0.01


def test_what_a_window_cannot_be(model, head):
    with pytest.raises(UserError, match=r"drafter\.window is 2, but the tree is 3 deep"):
        tiny_eagle.engine(model, head, ["drafter.window=2"])
    with pytest.raises(UserError, match="reference mode"):
        tiny_eagle.engine(model, head, ["drafter.window=8", "execution.mode=reference"])
