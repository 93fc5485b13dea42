"""The drafter Cell against ``reference_head`` over a tree of three levels, for every variant of a head."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from support import head_files
from support.heads import (
    BRANCH,
    LLAMA3,
    PLAIN,
    SLOTS,
    VOCABULARY,
    Reference,
    drafter_cell,
    int32,
    random_head,
    teacher_ends,
)

from ms_eagle.backends.stock import StockBackend
from ms_eagle.drafters.eagle3.checkpoint import Head, load_head
from ms_eagle.models.rope import RopeConfig
from ms_eagle.tree.masks import causal_mask, level_mask, level_slots, row_slots

VARIANTS = {
    "plain": {},
    "full vocabulary": {"draft_vocab_size": VOCABULARY},
    "teacher's LM head": {"draft_vocab_size": VOCABULARY, "shares_lm_head": True},
    "own embedding": {"own_embedding": True},
    "one tap": {"taps": (3,)},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "double_norm": {"double_norm": True},
    "double_norm, normed residual": {"double_norm": True, "norm_before_residual": True},
    "raw_logits": {"raw_logits": True},
    "fc bias": {"fc_bias": True},
    "qkv bias": {"qkv_bias": True},
    "o bias": {"o_bias": True},
    "mlp bias": {"mlp_bias": True},
    "qk_norm": {"qk_norm": True},
    "head_dim unlike hidden / heads": {"head_dim": 10, "rope": RopeConfig(10, 500.0, "default", {}, 128)},
    "one KV head": {"num_kv_heads": 1},
    "hidden unlike the teacher's": {"hidden_size": 16, "own_embedding": True},
    "two layers": {"num_layers": 2},
    "linear rope": {"rope": RopeConfig(6, 1e4, "linear", {"factor": 2.5}, 128)},
    "llama3 rope": {"rope": RopeConfig(6, 5e5, "llama3", LLAMA3, 128)},
    "yarn rope": {
        "rope": RopeConfig(6, 1e4, "yarn", {"factor": 4.0, "original_max_position_embeddings": 32}, 128)
    },
    "everything": {
        "hidden_size": 20,
        "head_dim": 8,
        "rope": RopeConfig(8, 1e6, "default", {}, 128),
        "num_layers": 3,
        "taps": (0, 1, 4, 9),
        "fc_norm": True,
        "norm_before_residual": True,
        "norm_output": True,
        "fc_bias": True,
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "qk_norm": True,
        "own_embedding": True,
    },
}


class Fuse(nn.Cell):
    """Taps to features."""

    def __init__(self, drafter):
        super().__init__()
        self.fuse = drafter.fuse

    def construct(self, taps):
        return self.fuse(taps)


class Step(nn.Cell):
    """Rows through the drafter: logits and next feature."""

    def __init__(self, drafter):
        super().__init__()
        self.drafter = drafter

    def construct(self, features, tokens, positions, slots, mask):
        hidden = self.drafter(tokens, features, positions, slots, mask)
        return self.drafter.logits(hidden), self.drafter.next_feature(hidden)


def check_tree(head, ends):
    """Extend two sequences to 5 and 2 rows in chunks of 3, then three levels, all against the reference."""
    config, counts = head.config, (5, 2)
    rng = np.random.default_rng(1)
    drafter = drafter_cell(head, ends, batch=2)
    fuse, step = Fuse(drafter), Step(drafter)
    taps = rng.standard_normal((2, 6, config.num_taps * config.target_hidden_size)).astype(np.float32)
    tokens = rng.integers(0, VOCABULARY, (2, 6))
    references = [Reference(head, ends) for _ in counts]
    parents_features, wanted_features = [None, None], [None, None]
    for chunk in range(2):
        start = np.minimum(3 * chunk, counts)
        valid = np.arange(3) < np.subtract(counts, start)[:, None]
        rows = slice(3 * chunk, 3 * chunk + 3)
        logits, features = step(
            fuse(Tensor(taps[:, rows])),
            int32(tokens[:, rows]),
            int32(start[:, None] + np.arange(3) * valid),
            row_slots(int32(start), Tensor(valid), SLOTS - 1),
            causal_mask(int32(start), int32(valid.sum(1)), BRANCH, SLOTS),
        )
        for b, reference in enumerate(references):
            first, end = start[b], start[b] + valid[b].sum()
            if end > first:
                want, feature = reference.run(
                    tokens[b, first:end].tolist(),
                    range(first, end),
                    [range(r) for r in range(first, end)],
                    taps=taps[b, first:end],
                )
                np.testing.assert_allclose(logits.asnumpy()[b, : end - first], want, atol=1e-4, rtol=0)
                np.testing.assert_allclose(features.asnumpy()[b, : end - first], feature, atol=1e-4, rtol=0)
                wanted_features[b] = feature[end - first - 1 :]
                parents_features[b] = features.asnumpy()[b, end - first - 1 : end - first]
    count = int32(counts)
    # Rows of the parents, level by level; the sequences' trees differ.
    families = [[[0, 0, 0], [0, 0, 0]], [[0, 0, 2], [1, 1, 1]], [[2, 1, 1], [0, 2, 1]]]
    lineage = np.zeros((2, 0, BRANCH), np.int32)
    for level, parents in enumerate(families):
        inherited = np.stack([lineage[b][:, parents[b]] for b in range(2)]) if level else lineage
        lineage = np.concatenate([inherited, np.tile(np.arange(BRANCH, dtype=np.int32), (2, 1, 1))], 1)
        tokens = rng.integers(0, VOCABULARY, (2, BRANCH))
        given = np.stack([parents_features[b][parents[b]] for b in range(2)])
        logits, features = step(
            Tensor(given),
            int32(tokens),
            int32(np.tile(np.array(counts)[:, None] + level, (1, BRANCH))),
            level_slots(count, level, BRANCH),
            level_mask(count, Tensor(lineage), SLOTS),
        )
        for b, n in enumerate(counts):
            seen = [
                [*range(n), *(n + above * BRANCH + lineage[b, above, row] for above in range(level))]
                for row in range(BRANCH)
            ]
            want, wanted_features[b] = references[b].run(
                tokens[b].tolist(), [n + level] * BRANCH, seen, feature=wanted_features[b][parents[b]]
            )
            np.testing.assert_allclose(logits.asnumpy()[b], want, atol=1e-4, rtol=0)
            np.testing.assert_allclose(features.asnumpy()[b], wanted_features[b], atol=1e-4, rtol=0)
            parents_features[b] = features.asnumpy()[b]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_tree_of_three_levels(name):
    head = random_head(replace(PLAIN, **VARIANTS[name]))
    check_tree(head, teacher_ends())
    ids = np.arange(VOCABULARY) if head.d2t is None else head.d2t
    drafter = drafter_cell(head, teacher_ends(), batch=1)
    assert drafter.target_ids.asnumpy().tolist() == ids.tolist()


ROPES = {
    "top level": {"rope_theta": 500.0},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "rope_scaling": {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    "absent": {},
}


@pytest.mark.parametrize("place", ROPES)
def test_rope_from_every_place_of_a_config(place, tmp_path):
    config = {k: v for k, v in head_files.CONFIG.items() if k != "rope_theta"} | ROPES[place]
    weights = {**head_files.tensors(config), **head_files.vocabulary(config)}
    head = load_head(head_files.write(tmp_path / "head", config, weights), teacher=head_files.TEACHER)
    assert head.config.rope.theta == (10000.0 if place == "absent" else 500.0)
    check_tree(head, teacher_ends())


@pytest.mark.parametrize("name", ["plain", "norm_output", "two layers"])
def test_the_oracle_tells_variants_apart(name):
    """A check of the check: the tolerance is far below what any variant changes."""
    config = replace(PLAIN, **VARIANTS[name])
    head = random_head(config)
    rows = {"tokens": [1, 2], "positions": [0, 1], "seen": [[], [0]]}
    taps = np.random.default_rng(2).standard_normal((2, 72))
    logits, feature = Reference(head, teacher_ends()).run(**rows, taps=taps)
    for changed in (
        {"rope": replace(config.rope, theta=100.0)},
        {"norm_before_residual": True},
        {"norm_output": not config.norm_output},
    ):
        other = Reference(Head(replace(config, **changed), head.tensors, head.d2t, {}), teacher_ends())
        other_logits, other_feature = other.run(**rows, taps=taps)
        distance = max(np.abs(other_logits - logits).max(), np.abs(other_feature - feature).max())
        assert distance > 1e-2, changed


def test_float16_stays_near_float32():
    head = random_head(PLAIN)
    ends = teacher_ends()
    rng = np.random.default_rng(3)
    taps, tokens = rng.standard_normal((1, 6, 72)).astype(np.float32), rng.integers(0, VOCABULARY, (1, 6))
    want, _ = Reference(head, ends).run(
        tokens[0].tolist(), range(6), [range(r) for r in range(6)], taps=taps[0]
    )
    drafter = drafter_cell(head, ends, 1, backend=StockBackend("eager", ms.float16))
    logits, feature = Step(drafter)(
        Fuse(drafter)(Tensor(taps).astype(ms.float16)),
        int32(tokens),
        int32(np.arange(6)[None]),
        int32(np.arange(6)[None]),
        causal_mask(int32([0]), int32([6]), 6, SLOTS),
    )
    assert (logits.dtype, feature.dtype) == (ms.float32, ms.float16)
    np.testing.assert_allclose(logits.asnumpy()[0], want, atol=0.05 * np.abs(want).max(), rtol=0)
