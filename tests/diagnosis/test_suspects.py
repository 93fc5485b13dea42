"""Which other readings of a head are tried."""

from dataclasses import replace

import numpy as np
from support import tiny_eagle
from support.heads import LLAMA3, PLAIN, random_head

from ms_eagle.diagnosis.suspects import as_it_is, suspects
from ms_eagle.models.rope import RopeConfig


def teacher(tmp_path, **settings):
    return tiny_eagle.decoder(tiny_eagle.model_dir("llama", tmp_path, **settings))


def names(head, decoder):
    return [reading.name for reading in suspects(head, decoder)]


def test_as_it_is():
    head = random_head(PLAIN)
    reading = as_it_is(head)
    assert (reading.config, reading.taps) == (head.config, (2, 5, 7))
    np.testing.assert_array_equal(reading.target_ids, head.d2t)
    full = as_it_is(random_head(replace(PLAIN, draft_vocab_size=40)))
    assert full.target_ids.tolist() == list(range(40))


def test_every_reading_differs_in_one_thing(tmp_path):
    head, decoder = random_head(PLAIN), teacher(tmp_path, num_hidden_layers=12, rope_theta=500000.0)
    plain, others = as_it_is(head), suspects(head, decoder)
    assert [reading.name for reading in others] == [
        "taps 3, 6, 8",
        "taps 1, 4, 6",
        "taps 2, 6, 9",
        "taps concatenated as 2, 7, 5",
        "taps concatenated as 5, 2, 7",
        "taps concatenated as 5, 7, 2",
        "taps concatenated as 7, 2, 5",
        "taps concatenated as 7, 5, 2",
        "the draft vocabulary in ascending order",
        "rope_theta 500000",
        "norm_before_residual true",
        "norm_output true",
        "double_norm true",
        "raw_logits true",
    ]
    assert others[-1].advice == "set drafter.raw_logits=true"
    for reading in others:
        differences = [
            reading.config != plain.config,
            reading.taps != plain.taps,
            not np.array_equal(reading.target_ids, plain.target_ids),
        ]
        assert sum(differences) == 1, reading.name
        assert reading.advice
    assert "set drafter.taps=[1, 4, 6]" in others[1].advice
    assert others[8].target_ids.tolist() == sorted(head.d2t.tolist())


def test_taps_stay_within_the_teacher(tmp_path):
    decoder = teacher(tmp_path, num_hidden_layers=3)
    found = names(random_head(replace(PLAIN, taps=(0, 1, 2))), decoder)
    assert not [name for name in found if name.startswith("taps ") and "concatenated" not in name]
    assert "taps 1" in names(random_head(replace(PLAIN, taps=(0,))), decoder)


def test_four_taps_are_only_reversed(tmp_path):
    found = names(random_head(replace(PLAIN, taps=(0, 1, 2, 3))), teacher(tmp_path, num_hidden_layers=4))
    assert [name for name in found if "concatenated" in name] == ["taps concatenated as 3, 2, 1, 0"]


def test_rotations(tmp_path):
    decoder = teacher(tmp_path, rope_theta=300.0)
    scaled = replace(PLAIN, rope=RopeConfig(6, 5e5, "llama3", LLAMA3, 128))
    found = [reading for reading in suspects(random_head(scaled), decoder) if "rope" in reading.name]
    assert [reading.name for reading in found] == [
        "rope_theta 10000",
        "rope_theta 300",
        "rope_theta 500000, default scaling",
        "rope_theta 10000, default scaling",
        "rope_theta 300, default scaling",
    ]
    assert found[0].config.rope == replace(scaled.rope, theta=10000.0)
    assert found[2].config.rope.parameters == {}
    assert found[0].advice == "set drafter.rope_theta=10000"
    assert "config.json" in found[2].advice


def test_target_ids_where_offsets_belong(tmp_path):
    """Offsets that are distinct and in range may be the ids themselves."""
    head = random_head(PLAIN)
    ids = (np.arange(16) * 2 + 3).astype(np.int32)  # offsets 3, 4, .., 18
    found = suspects(replace(head, d2t=ids), teacher(tmp_path))
    reading = next(reading for reading in found if reading.name == "d2t as target ids")
    assert reading.target_ids.tolist() == list(range(3, 19))
    assert "d2t as target ids" not in names(
        random_head(replace(PLAIN, draft_vocab_size=40)), teacher(tmp_path / "b")
    )
