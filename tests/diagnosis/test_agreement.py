"""Agreement with a teacher: which chains count, and every figure against a slow count over single chains."""

import json
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
import torch
from support import tiny
from support.heads import PLAIN, VOCABULARY, Reference, random_head, teacher_ends

from ms_eagle.backends.stock import StockBackend
from ms_eagle.diagnosis.agreement import HeadMeter, Passage, TeacherReader, _relabelled
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Weight

DEPTH, BRANCH, TAPS = 3, 4, (0, 2, 5)
STOCK = StockBackend("eager", ms.float32)


def passage(tokens, choices, first=1, taps=None):
    return Passage(np.array(tokens, np.int32), np.array(choices, np.int32), taps or {}, first)


def test_chains_go_on_along_the_teachers_path():
    #                position  0  1  2  3  4  5
    text = passage(tokens=[10, 11, 12, 13, 14, 15], choices=[90, 12, 13, 91, 15, 16])
    assert text.rows == 5
    # Token 14 is not the teacher's choice after 13: no chain passes from position 3 to position 4.
    assert text.measurable(3).astype(int).tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 0],
    ]
    assert text.targets(1).tolist() == [12, 13, 91, 15, 16]
    assert text.targets(2).tolist() == [13, 91, 15, 16, 0]


def test_a_prompt_is_context_only():
    text = passage([10, 11, 12, 13, 14], [11, 12, 13, 14, 15], first=2)
    assert text.measurable(2).astype(int).tolist() == [[0, 1, 1, 1], [0, 1, 1, 0]]


def test_a_loop_counts_once():
    tokens = [1, 2, 3, *([7, 8] * 12)]
    text = passage(tokens, [*tokens[1:], 7])
    starts = np.flatnonzero(text.measurable(1)[0]).tolist()
    # Rows end at position row + 1; a context of eight tokens has been seen from position 12 on.
    assert starts == list(range(11))


def test_relabelled():
    assert _relabelled(np.array([5, 5, 5, 6, 6]), np.array([1, 1, 2, 3, 3])) == pytest.approx(2 / 5)
    assert _relabelled(np.array([1, 2, 3]), np.array([1, 2, 3])) == 0  # met once, nothing to go by
    assert _relabelled(np.array([], int), np.array([], int)) == 0


class Lender:
    """The part of a teacher that a meter takes."""

    def __init__(self, ends):
        self.vocabulary, self.head = (STOCK.vocabulary(Weight.of(end)) for end in ends)
        self.cache = np.zeros((1, 2, 8, 8), np.float32)


def random_passage(rng, rows, first):
    """About two thirds of its tokens are the teacher's choices."""
    choices = rng.integers(0, VOCABULARY, rows + 1)
    tokens = rng.integers(0, VOCABULARY, rows + 1)
    own = rng.random(rows) < 0.67
    tokens[1:] = np.where(own, choices[:-1], tokens[1:])
    taps = {block: rng.standard_normal((rows + 1, 24)).astype(np.float32) for block in (0, 1, 2, 5)}
    return passage(tokens, choices, first, taps)


def slow_ranks(head, ends, text, taps):
    """For every chain that counts: the rank of the teacher's choice at each depth it reaches."""
    found = []
    states = np.concatenate([text.taps[tap] for tap in taps], 1)
    for row in range(text.rows):
        if row + 1 < text.first:
            continue
        reference, ranks = Reference(head, ends), []
        logits, features = reference.run(
            text.tokens[1 : row + 2].tolist(),
            range(row + 1),
            [range(r) for r in range(row + 1)],
            taps=states[: row + 1],
        )
        logits, feature, place = logits[row], features[row], row + 1
        while True:
            best = torch.as_tensor(logits).argsort(descending=True)[:BRANCH].tolist()
            names = [head.d2t[i] for i in best]
            choice = text.choices[place]
            ranks.append(names.index(choice) if choice in names else BRANCH)
            if len(ranks) == DEPTH or place == text.rows or text.tokens[place + 1] != choice:
                break
            place += 1
            logits, features = reference.run(
                [text.tokens[place]], [place - 1], [range(reference.rows)], feature=feature[None]
            )
            logits, feature = logits[0], features[0]
        found.append(ranks)
    return found


@pytest.mark.parametrize("name", ["plain", "norm_output"])
def test_every_figure_against_single_chains(name):
    config = replace(PLAIN, norm_output=name == "norm_output", draft_vocab_size=30)
    head, ends, rng = random_head(config), teacher_ends(), np.random.default_rng(4)
    texts = [random_passage(rng, 14, 1), random_passage(rng, 9, 4)]
    meter = HeadMeter(head, Lender(ends), STOCK, rows=14, depth=DEPTH, branch=BRANCH)
    for taps in (TAPS, (5, 1, 2)):
        found = meter.measure(texts, taps, head.d2t)
        chains = [ranks for text in texts for ranks in slow_ranks(head, ends, text, taps)]
        for depth in range(1, DEPTH + 1):
            reached = [ranks[depth - 1] for ranks in chains if len(ranks) >= depth]
            assert found.positions[depth - 1] == len(reached) > 3
            assert found.top1[depth - 1] == pytest.approx(np.mean([rank == 0 for rank in reached]))
            assert found.topk[depth - 1] == pytest.approx(np.mean([rank < BRANCH for rank in reached]))
        whole = [ranks for ranks in chains if len(ranks) == DEPTH]

        def leading(ranks, below):
            return next((i for i, rank in enumerate(ranks) if rank >= below), DEPTH)

        assert found.accept_chain == pytest.approx(np.mean([leading(ranks, 1) for ranks in whole]))
        assert found.accept_branch == pytest.approx(np.mean([leading(ranks, BRANCH) for ranks in whole]))
        goals = [choice for text in texts for choice in text.choices[text.first :]]
        assert found.coverage == pytest.approx(np.isin(goals, head.d2t).mean())
        assert found.finite


def test_logits_that_are_not_finite_are_seen():
    head = random_head(PLAIN)
    tensors = {**head.tensors, "fc.weight": head.tensors["fc.weight"] * np.float32(1e38)}
    meter = HeadMeter(
        replace(head, tensors=tensors), Lender(teacher_ends()), STOCK, rows=6, depth=2, branch=2
    )
    text = random_passage(np.random.default_rng(5), 6, 1)
    assert not meter.measure([text], TAPS, head.d2t).finite


def test_a_teacher_reads_in_chunks():
    model = tiny.make("qwen3", num_hidden_layers=4)
    config = DecoderConfig.from_hf(
        json.loads(model.config.to_json_string()) | {"architectures": ["Qwen3ForCausalLM"]}
    )
    teacher = Teacher(
        config,
        tiny.weights(model).__getitem__,
        STOCK,
        batch=1,
        slots=24,
        positions=24,
        taps=(1, 3),
    )
    tokens = np.random.default_rng(6).integers(0, 96, 19).tolist()
    found = TeacherReader(teacher, chunk=8).read(tokens, first=5)
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True)
    assert (found.tokens.tolist(), found.first) == (tokens, 5)
    assert found.choices.tolist() == out.logits[0].argmax(1).tolist()
    assert sorted(found.taps) == [1, 3]
    for block, states in found.taps.items():
        np.testing.assert_allclose(states, out.hidden_states[block][0].numpy(), atol=1e-4, rtol=0)
    teacher.norm.weight.set_data(ms.ops.full_like(teacher.norm.weight, float("inf")))
    with pytest.raises(UserError, match="not finite"):
        TeacherReader(teacher, chunk=8).read(tokens, first=1)
