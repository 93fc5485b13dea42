"""The training step: what is paired with what, the unrolled drafter, its loss, gradients and resumption."""

from dataclasses import replace

import numpy as np
import pytest
from support import reference_head
from support.heads import random_tensors

from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.errors import UserError
from ms_eagle.models.rope import RopeConfig
from ms_eagle.training.batches import Batch
from ms_eagle.training.initial import teacher_start
from ms_eagle.training.step import HeadTrainer, StepOptions, arrange, draft_ids

VOCABULARY, WIDTH, STEPS, DEPTH = 30, 16, 3, 4
HEAD = HeadConfig(
    format="test",
    hidden_size=WIDTH,
    target_hidden_size=WIDTH,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    num_layers=1,
    vocab_size=VOCABULARY,
    draft_vocab_size=12,
    rms_norm_eps=1e-5,
    rope=RopeConfig(6, 10000.0, "default", {}, 128),
    taps=(2, 5, 7),
)
VARIANTS = {
    "plain": {},
    "norms": {"fc_norm": True, "norm_output": True},
    "two layers": {"num_layers": 2, "norm_before_residual": True, "taps": (1,)},
}
MUON = ("two layers",)


def packed(config, segments, answer, seed=0):
    """Random content for packed rows; ``segments`` and ``answer`` are ``[B, T]``."""
    rng = np.random.default_rng(seed)
    segments, answer = np.array(segments, np.int32), np.array(answer, bool)
    positions = np.zeros_like(segments)
    for row, own in enumerate(segments):
        for at in range(1, len(own)):
            positions[row, at] = positions[row, at - 1] + 1 if own[at] == own[at - 1] else 0
    shape, width = segments.shape, config.target_hidden_size
    return Batch(
        rng.integers(0, VOCABULARY, shape).astype(np.int32),
        segments,
        positions,
        answer,
        rng.standard_normal((*shape, config.num_taps * width)).astype(np.float16),
        rng.standard_normal((*shape, width)).astype(np.float16),
        conversations=(),
    )


TWO = (
    [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]],
    [[0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]],
)


def start_of(config, seed=0):
    return random_tensors(config.tensor_shapes(), np.random.default_rng(seed))


def ends(seed=5):
    """The teacher's embedding, its LM head rows of the draft vocabulary, and that vocabulary."""
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    target_ids = np.sort(rng.permutation(VOCABULARY)[: HEAD.draft_vocab_size]).astype(np.int32)
    return embedding, rng.standard_normal((len(target_ids), WIDTH)).astype(np.float32), target_ids


OPTIONS = StepOptions(ttt_steps=STEPS, depth=DEPTH, queries=1.0, weight_decay=0.1)


@pytest.fixture(scope="module")
def trainers():
    """A trainer of each variant, compiled once; the state it was made with goes into each test."""
    made = {}
    for name, change in VARIANTS.items():
        config = replace(HEAD, **change)
        options = replace(OPTIONS, muon=name in MUON)
        made[name] = HeadTrainer(config, *ends(), start_of(config), options, length=12)
    fresh = {name: each.state() for name, each in made.items()}

    def give(name):
        made[name].restore(fresh[name])
        return made[name]

    return give


def unrolled(config, tensors, batch, row, steps):
    """Each row's logits ``[steps, V_d]`` by the oracle; None for rows that are never judged.

    Step 0 runs over the conversation, then every row's chain on its own: it sees the rows up to itself and
    the chain's own earlier steps.
    """
    embedding, _, _ = ends()
    found = {}
    for segment in set(batch.segments[row].tolist()) - {0}:
        at = np.flatnonzero(batch.segments[row] == segment)
        tokens = batch.tokens[row]
        after = [int(tokens[min(i + 1, len(tokens) - 1)]) for i in at]
        first = reference_head.forward(
            config,
            tensors,
            after,
            range(len(at)),
            ~np.tri(len(at), dtype=bool),
            taps=batch.taps[row, at].astype(np.float64),
            teacher_embedding=embedding,
        )
        for place, i in enumerate(at):
            logits, feature = [first.logits[place].numpy()], first.next_feature[place : place + 1].numpy()
            past = [(k[:, : place + 1], v[:, : place + 1]) for k, v in first.past]
            for step in range(1, steps):
                if i + 1 + step >= len(tokens):
                    break
                grown = reference_head.forward(
                    config,
                    tensors,
                    [int(tokens[i + 1 + step])],
                    [place + step],
                    np.zeros((1, place + 1 + step), bool),
                    feature=feature,
                    past=past,
                    teacher_embedding=embedding,
                )
                logits.append(grown.logits[0].numpy())
                feature, past = grown.next_feature.numpy(), grown.past
            found[int(i)] = logits
    return found


def expected(config, tensors, batch, steps, decay=0.8):
    """Loss, per-step accuracy, and chain counts, row by row in float64."""
    _, rows, target_ids = ends()
    ids = draft_ids(VOCABULARY, target_ids)
    losses, hits = [[] for _ in range(steps)], [[] for _ in range(steps)]
    chains = []
    for row in range(len(batch.tokens)):
        logits = unrolled(config, tensors, batch, row, steps)
        length = len(batch.tokens[row])
        for i, each in logits.items():
            matches = []
            for step in range(steps):
                target = i + 2 + step
                if target >= length or batch.segments[row, target] != batch.segments[row, i]:
                    break
                if not batch.answer[row, i + 2]:
                    break
                label = ids[batch.tokens[row, target]]
                hit = int(each[step].argmax()) == label
                matches.append(hit)
                hits[step].append(hit)
                if label < len(target_ids):
                    wanted = batch.final[row, i + 1 + step].astype(np.float64) @ rows.T.astype(np.float64)
                    wanted = np.exp(wanted - wanted.max())
                    q = each[step] - each[step].max()
                    losses[step].append(-(wanted / wanted.sum() * (q - np.log(np.exp(q).sum()))).sum())
            if len(matches) == steps:
                chains.append(matches)
    loss = sum(decay**step * np.mean(each) for step, each in enumerate(losses) if each)
    counts = [len(chains)] + [sum(all(chain[:d]) for chain in chains) for d in range(1, steps + 1)]
    return loss, [np.mean(each) for each in hits], counts


def test_the_pairs_of_a_hand_made_row():
    """Feature i with token i + 1 predicts token i + 2, from the teacher's state at i + 1."""
    batch = packed(HEAD, *TWO)
    tokens = batch.tokens
    made = arrange(batch, 2, 1.0, np.arange(VOCABULARY, dtype=np.int32))
    # Row 0 holds two conversations of six tokens, answers from 2 and from 9 on: rows 0..3 and 7..9 predict
    # an answer's token at their first step, and the last of each has no second.
    assert made.rows[0, :7].tolist() == [0, 1, 2, 3, 7, 8, 9]
    labels, weights = made.labels.reshape(2, 2, 12), made.weights.reshape(2, 2, 12)
    assert weights[0, 0].tolist() == [1] * 7 + [0] * 5
    assert weights[1, 0].tolist() == [1, 1, 1, 0, 1, 1, 0] + [0] * 5
    assert labels[0, 0, :7].tolist() == tokens[0, [2, 3, 4, 5, 9, 10, 11]].tolist()
    assert labels[1, 0, [0, 1, 2, 4, 5]].tolist() == tokens[0, [3, 4, 5, 10, 11]].tolist()
    assert made.tokens[0, :11].tolist() == tokens[0, 1:].tolist()
    assert made.step_tokens[0, 0, :7].tolist() == tokens[0, [1, 2, 3, 4, 8, 9, 10]].tolist()
    assert made.step_tokens[0, 1, :6].tolist() == tokens[0, [2, 3, 4, 5, 9, 10]].tolist()
    np.testing.assert_array_equal(made.final.reshape(2, 12, WIDTH)[0, :4], batch.final[0, 1:5])
    # Row 1: nine tokens, answers from 3 on.
    assert made.rows[1, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert weights[:, 1].sum(1).tolist() == [6, 5]


def test_answers_beyond_the_queries_are_left_out():
    batch = packed(HEAD, *TWO)
    made = arrange(batch, 2, 0.25, np.arange(VOCABULARY, dtype=np.int32))
    assert made.rows.tolist() == [[0, 1, 2], [1, 2, 3]]
    # The third query's second step would need the target of a query that is not there.
    assert made.weights.reshape(2, 2, 3)[1].tolist() == [[1, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_chains_are_those_of_the_oracle(trainers, variant):
    """Every step, packed neighbours and padding included, against torch in float64."""
    config = replace(HEAD, **VARIANTS[variant])
    batch, tensors = packed(config, *TWO), start_of(config)
    loss, accuracy, _ = expected(config, tensors, batch, STEPS)
    _, _, counts = expected(config, tensors, batch, DEPTH)
    made = trainers(variant)
    assert made.evaluate(batch).tolist() == counts
    report = made.train(batch, 0.0)
    assert report.loss == pytest.approx(loss, rel=1e-4)
    assert report.accuracy == pytest.approx(accuracy, abs=1e-6)
    assert report.positions == 13
    # A rate of 0 changes nothing.
    for name, value in made.tensors().items():
        np.testing.assert_array_equal(value, tensors[name])


def test_chains_count_what_matches(trainers):
    """A draft planted to be right: the batch is told that the teacher said what the head drafts."""
    batch, tensors = packed(HEAD, *TWO), start_of(HEAD)
    _, _, target_ids = ends()
    told = batch.tokens.copy()
    for ahead in range(2):  # after row 1 of the second sequence: one draft, then the next, which sees it
        drafted = unrolled(HEAD, tensors, replace(batch, tokens=told), 1, DEPTH)[1][ahead].argmax()
        told[1, 3 + ahead] = target_ids[drafted]
    planted = replace(batch, tokens=told)
    counts = trainers("plain").evaluate(planted).tolist()
    assert counts == expected(HEAD, tensors, planted, DEPTH)[2]
    assert counts[0] == 4
    assert counts[2] >= 1


def test_gradients_point_along_the_loss_and_are_clipped_together(trainers):
    """A small step along any tensor changes the loss as the first moment of the update says."""
    config = replace(HEAD, **VARIANTS["norms"])
    batch, tensors = packed(config, *TWO), start_of(config)
    made = trainers("norms")
    norm = made.train(batch, 0.0).grad_norm
    assert norm > OPTIONS.clip
    state = made.state()
    # The moment is (1 - beta1) times the gradient, scaled down to the clipping norm.
    gradients = {name: state[f"first.{name}"] / 0.1 * (norm / OPTIONS.clip) for name in tensors}
    assert np.sqrt(sum((each**2).sum() for each in gradients.values())) == pytest.approx(norm, rel=1e-3)
    rng = np.random.default_rng(3)
    for name in tensors:
        direction = rng.standard_normal(tensors[name].shape)
        direction *= 1e-4 / np.linalg.norm(direction)
        direction += gradients[name] / np.linalg.norm(gradients[name]) * 1e-4
        ahead, behind = (
            expected(config, {**tensors, name: tensors[name] + sign * direction}, batch, STEPS)[0]
            for sign in (1, -1)
        )
        assert (ahead - behind) / 2 == pytest.approx((gradients[name] * direction).sum(), rel=2e-2), name


def test_a_restored_trainer_goes_on_bit_for_bit(trainers):
    config = replace(HEAD, **VARIANTS["two layers"])
    batch, made = packed(config, *TWO), trainers("two layers")
    for _ in range(2):
        made.train(batch, 1e-2)
    kept = made.state()
    reports = [made.train(batch, 1e-2) for _ in range(3)]
    end = made.state()
    assert any((end[name] != kept[name]).any() for name in made.tensors())
    made.restore(kept)
    assert [made.train(batch, 1e-2) for _ in range(3)] == reports
    for name, value in made.state().items():
        np.testing.assert_array_equal(value, end[name])


def test_the_state_of_another_head_is_refused(trainers):
    made = trainers("plain")
    with pytest.raises(UserError, match=r"fc.weight as \(16, 16\); expected \(16, 48\)"):
        made.restore({**made.state(), "fc.weight": np.zeros((16, 16), np.float32)})


def test_options_that_are_not_trained_are_refused():
    config = replace(HEAD, qkv_bias=True, qk_norm=True)
    with pytest.raises(UserError, match="qkv_bias, qk_norm"):
        HeadTrainer(config, *ends(), start_of(config), OPTIONS, length=12)


def test_training_learns_a_sentence(trainers):
    batch = packed(HEAD, *TWO)
    _, rows, target_ids = ends()
    rng = np.random.default_rng(1)
    ids = rng.integers(0, len(target_ids), batch.tokens.shape)
    # The teacher is sure of what was said: its state one position before gives that token a logit of 12.
    sure = 12 * np.linalg.pinv(rows.astype(np.float64)).T
    final = np.zeros_like(batch.final)
    final[:, :-1] = sure[ids[:, 1:]]
    batch = replace(batch, tokens=target_ids[ids].astype(np.int32), final=final)
    made = trainers("plain")
    for _ in range(200):
        report = made.train(batch, 1e-2)
    assert report.accuracy == (1.0, 1.0, 1.0)
    counts = made.evaluate(batch)
    assert counts[0] == 4
    assert counts[STEPS] == counts[0]


def test_starting_from_the_teacher_takes_its_tensors():
    rng = np.random.default_rng(0)
    given = {}

    def read(name):
        shapes = {"q": (24, 16), "k": (12, 16), "v": (12, 16), "o": (16, 24)}
        mlp = {"gate": (24, 16), "up": (24, 16), "down": (16, 24)}
        part = name.split(".")[-2].split("_")[0]
        shape = {**shapes, **mlp}.get(part, (16,))
        return given.setdefault(name, rng.standard_normal(shape).astype(np.float32))

    _, rows, _ = ends()
    tensors = teacher_start(HEAD, 0, read, 7, rows, tap_rms=20.0)
    assert {name: value.shape for name, value in tensors.items()} == HEAD.tensor_shapes()
    last = "model.layers.6."
    np.testing.assert_array_equal(tensors["lm_head.weight"], rows)
    np.testing.assert_array_equal(tensors["norm.weight"], given["model.norm.weight"])
    np.testing.assert_array_equal(
        tensors["layers.0.attention.q_proj.weight"][:, 16:], given[f"{last}self_attn.q_proj.weight"]
    )
    down = given[f"{last}mlp.down_proj.weight"]
    np.testing.assert_array_equal(tensors["layers.0.mlp.down_proj.weight"], down * np.float32(0.25))
    np.testing.assert_array_equal(tensors["fc.weight"][:, 32:], 0.25 * np.eye(16))
    norm = given[f"{last}input_layernorm.weight"]
    np.testing.assert_array_equal(tensors["layers.0.hidden_norm.weight"], norm)
