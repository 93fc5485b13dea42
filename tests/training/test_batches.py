"""Splitting, packing and batches: every conversation whole, in its place, and the same for the same step."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_corpus

from ms_eagle.errors import UserError
from ms_eagle.training.batches import Batches
from ms_eagle.training.corpus.split import split
from ms_eagle.training.features.teacher import Features
from ms_eagle.training.packing import pack

LENGTHS = [5, 9, 3, 14, 7, 2, 6, 8, 4, 1]
CORPUS = toy_corpus.corpus(LENGTHS)


class Source:
    """Features that say which token of the corpus they belong to."""

    taps = (1, 2)

    def read(self, conversations):
        return [self._features(*CORPUS.offsets[i : i + 2]) for i in conversations]

    def _features(self, begin, end):
        at = np.arange(begin, end, dtype=np.float16)[:, None]
        return Features(np.concatenate([at, at + 100, at + 200, at + 300], 1), np.concatenate([-at, at], 1))


def batches(conversations=range(10), *, rows=2, length=10, seed=3, **workers) -> Batches:
    return Batches(CORPUS, Source(), np.array(conversations), rows=rows, length=length, seed=seed, **workers)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(20, 50), st.integers(0, 5))
def test_packing_places_every_item_once_and_overfills_no_row(lengths, room, seed):
    lengths = np.array(lengths)
    for rng in (None, np.random.default_rng(seed)):
        rows = pack(lengths, room, rng)
        assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
        assert all(0 < lengths[row].sum() <= room for row in rows)
        # No two rows could be one: then packing would have put the later ones' items into the earlier.
        sums = sorted(int(lengths[row].sum()) for row in rows)
        assert len(sums) < 2 or sums[0] + sums[1] > room
        assert len(rows) == len(pack(lengths, room, None))


def test_packing_by_hand():
    # 7 opens a row, 5 another, 4 fills the second up to 9, 3 the first up to 10, 1 the second.
    assert pack(np.array([3, 5, 7, 4, 1]), 10, None) == [[2, 0], [1, 3, 4]]


def test_a_batch_holds_what_the_corpus_and_the_teacher_say():
    (batch,) = batches([2, 3, 0], rows=3).all()  # 3 and 5 tokens share a row, 14 are cut to 10
    assert batch.conversations == ((3,), (0, 2))
    ids = [CORPUS.ids[CORPUS.offsets[i] : CORPUS.offsets[i + 1]] for i in range(10)]
    np.testing.assert_array_equal(batch.tokens[0], ids[3][:10])
    np.testing.assert_array_equal(batch.tokens[1], [*ids[0], *ids[2], 0, 0])
    np.testing.assert_array_equal(batch.segments, [[1] * 10, [1] * 5 + [2] * 3 + [0, 0], [0] * 10])
    np.testing.assert_array_equal(batch.positions[1], [0, 1, 2, 3, 4, 0, 1, 2, 0, 0])
    np.testing.assert_array_equal(batch.answer[0], [False] * 7 + [True] * 3)
    np.testing.assert_array_equal(batch.answer[1], [0, 0, 1, 1, 1, 0, 1, 1, 0, 0])
    first = CORPUS.offsets[0] + np.arange(5)
    np.testing.assert_array_equal(batch.taps[1, :5], first[:, None] + [0, 100, 200, 300])
    np.testing.assert_array_equal(batch.final[1, 5:8, 1], CORPUS.offsets[2] + np.arange(3))
    assert not batch.taps[1, 8:].any()
    assert not batch.final[2].any()
    kinds = {name: getattr(batch, name).dtype.name for name in ("tokens", "segments", "positions", "answer")}
    assert kinds == {"tokens": "int32", "segments": "int32", "positions": "int32", "answer": "bool"}
    assert batch.taps.dtype == batch.final.dtype == np.float16


def seen(batch) -> list[int]:
    return [number for row in batch.conversations for number in row]


def test_steps_are_addressed_by_number():
    plan, again = batches(), batches()
    steps = 3 * plan.steps_per_epoch
    forwards = [plan.step(i) for i in range(steps)]
    for number in (steps - 1, 0, 2, 1):
        np.testing.assert_array_equal(again.step(number).tokens, forwards[number].tokens)
    orders = [[seen(b) for b in forwards[i : i + plan.steps_per_epoch]] for i in range(0, steps, steps // 3)]
    assert orders[0] != orders[1] != orders[2]
    assert any(seen(batches(seed=4).step(i)) != seen(forwards[i]) for i in range(plan.steps_per_epoch))


def test_an_epoch_has_every_conversation_but_those_of_an_unfilled_batch():
    plan = batches()
    rows = len(pack(np.minimum(LENGTHS, 10), 10, None))
    assert plan.steps_per_epoch == rows // 2
    numbers = [n for i in range(plan.steps_per_epoch) for n in seen(plan.step(i))]
    assert len(numbers) == len(set(numbers))
    held = [batch.conversations for batch in plan.all()]
    assert sorted(n for rows_ in held for row in rows_ for n in row) == list(range(10))


def test_workers_share_the_rows_of_a_step():
    whole = batches(rows=4).step(0)
    parts = [batches(rows=2, rank=rank, ranks=2).step(0) for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate([part.tokens for part in parts]), whole.tokens)
    with pytest.raises(UserError, match="fills 1 rows of 10 tokens, too few for 2 workers of 1 rows"):
        batches([0, 2], rows=1, rank=1, ranks=2)


def test_the_last_of_each_source_are_held_out():
    corpus = toy_corpus.corpus([4] * 13, sources=[0] * 5 + [1] * 6 + [2] + [0])
    corpus.role[16:20] = 0  # conversation 4 has no answer
    found = split(corpus.source, corpus.role, corpus.offsets, 0.3)
    # Of source 0 (0 1 2 3 12) two are held out, of source 1 (5 to 10) two, of source 2 (11) none.
    assert found.held_out.tolist() == [3, 9, 10, 12]
    assert found.train.tolist() == [0, 1, 2, 5, 6, 7, 8, 11]
    everything = split(corpus.source, corpus.role, corpus.offsets, 0.0)
    assert everything.train.tolist() == everything.held_out.tolist() == [0, 1, 2, 3, *range(5, 13)]


def test_a_corpus_too_small_is_refused():
    nothing = SimpleNamespace(source=np.zeros(1, int), role=np.zeros(4), offsets=np.array([0, 4]))
    with pytest.raises(UserError, match="the corpus has 1 conversations, none with an answer to train on"):
        split(nothing.source, nothing.role, nothing.offsets, 0.1)
    with pytest.raises(UserError, match=r"none can be held out .* data.held_out=0"):
        split(np.arange(3), np.ones(6), np.array([0, 2, 4, 6]), 0.1)
