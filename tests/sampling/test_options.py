import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference_sampling as reference
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ms_eagle.errors import UserError
from ms_eagle.sampling.options import NO_MIN_P, NO_TOP_K, PARAMS, SamplingParams, params_tensor


def test_defaults_are_greedy():
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.1).greedy
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 1.0


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", -0.5, "above 0"),
        ("temperature", math.nan, "above 0"),
        ("temperature", math.inf, "above 0"),
        ("temperature", "hot", "above 0"),
        ("temperature", True, "above 0"),
        ("top_k", -1, "0 (off) or more"),
        ("top_k", 1.5, "0 (off) or more"),
        ("top_k", True, "0 (off) or more"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_p", math.nan, "above 0 and at most 1"),
        ("min_p", -0.1, "from 0 (off) to 1"),
        ("min_p", 1.1, "from 0 (off) to 1"),
        ("min_p", math.nan, "from 0 (off) to 1"),
        ("repetition_penalty", 0.0, "0.001 to 1000"),
        ("repetition_penalty", -1.0, "0.001 to 1000"),
        ("repetition_penalty", math.inf, "0.001 to 1000"),
        ("repetition_penalty", None, "0.001 to 1000"),
        ("seed", -1, "from 0 to 18446744073709551615"),
        ("seed", 2**64, "from 0 to 18446744073709551615"),
    ],
)
def test_a_bad_value_is_refused_by_name_value_and_range(field, value, expected):
    with pytest.raises(UserError) as error:
        SamplingParams(**{field: value})
    message = str(error.value)
    assert message.startswith(f"{field}: found {value!r}, expected ")
    assert expected in message
    assert "\n" not in message


def test_range_ends_are_accepted():
    SamplingParams(temperature=1e9, top_k=10**9, top_p=1, min_p=1, repetition_penalty=1000, seed=2**64 - 1)
    SamplingParams(temperature=0, top_k=0, top_p=1e-9, min_p=0, repetition_penalty=0.001, seed=0)


def test_params_tensor_packs_one_row_per_request():
    table = params_tensor(
        [
            SamplingParams(),
            SamplingParams(temperature=0.5, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.2, seed=9),
            SamplingParams(temperature=1e-40, top_k=10**12, min_p=1.0, min_length=9),
            SamplingParams(temperature=1, top_p=0.9, keep_crossing=False, min_length=9, end_ids=(7, 3)),
        ]
    )
    assert table.dtype == np.float32
    assert PARAMS[:5] == ("temperature", "top_k", "top_p", "min_p_nats", "repetition_penalty")
    assert PARAMS[5:] == ("keep_crossing", "min_length", *(f"end_{i}" for i in range(8)))
    expected = [
        [0, NO_TOP_K, 1, NO_MIN_P, 1, 1, 0, *[0] * 8],
        [0.5, 40, 0.9, -math.log(0.05), 1.2, 1, 0, *[0] * 8],
        [1e-20, NO_TOP_K, 1, 0, 1, 1, 0, *[0] * 8],
        [1, NO_TOP_K, 0.9, NO_MIN_P, 1, 0, 9, 7, *[3] * 7],
    ]
    np.testing.assert_array_equal(table, np.array(expected, dtype=np.float32))
    assert params_tensor([]).shape == (0, 15)


def test_a_temperature_above_zero_stays_above_zero_on_the_device():
    assert params_tensor([SamplingParams(temperature=5e-324)])[0, 0] > 0
    assert np.isfinite(params_tensor([SamplingParams(temperature=1e300)])[0, 0])


def transformers_kept(logits, seen, params):
    """Ids that transformers' processors leave above -inf."""
    scores = torch.from_numpy(logits).double()[None]
    ids = torch.from_numpy(np.flatnonzero(seen))[None]
    if ids.numel():
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    scores = TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return set(torch.nonzero(torch.isfinite(scores[0])).flatten().tolist())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 60),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 7, 50]),
    top_p=st.sampled_from([0.05, 0.5, 0.83, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.31, 0.9]),
    penalty=st.sampled_from([0.7, 1.0, 1.3]),
)
def test_kept_sets_equal_those_of_transformers(seed, size, temperature, top_k, top_p, min_p, penalty):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size, scale=3).astype(np.float32)  # tie-free
    seen = rng.random(size) < 0.3
    params = SamplingParams(temperature, top_k, top_p, min_p, penalty)
    changed = reference.penalised(logits, seen, penalty)
    ours = set(reference.kept(changed, params).tolist())
    assert ours == transformers_kept(logits, seen, params)
    fixed = set(reference.choose_fixed(logits, seen, params, 0.5)[1])
    assert fixed == {i for i in ours if (changed.max() - changed[i]) / temperature < 40 * math.log(2)}


def test_a_top_p_that_is_1_as_float32_is_off():
    below = 1 - 2.0**-53
    assert below < 1 == np.float32(below)
    (row,) = params_tensor([SamplingParams(temperature=1.0, top_p=below, keep_crossing=False)])
    assert (row[2], row[PARAMS.index("keep_crossing")]) == (1, 1)
