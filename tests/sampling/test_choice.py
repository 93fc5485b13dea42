import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn
from support import reference_sampling as reference
from support.sampling_cases import LOGITS, PARAMS, SEEN, UNIFORMS, B, N, V

from ms_eagle.sampling import choice
from ms_eagle.sampling.options import SamplingParams, params_tensor
from ms_eagle.sampling.uniforms import uniform_table


class Greedy(nn.Cell):
    def construct(self, logits):
        return choice.choose_greedy(logits)


class PenalisedGreedy(nn.Cell):
    def construct(self, logits, penalty, seen):
        return choice.choose_greedy(choice.penalise(logits, penalty, seen))


class Sampled(nn.Cell):
    def construct(self, logits, seen, params, uniforms):
        return choice.choose_sampled(logits, seen, params, uniforms)


class SampledUnpenalised(nn.Cell):
    def construct(self, logits, params, uniforms):
        return choice.choose_sampled(logits, None, params, uniforms)


class NotFinite(nn.Cell):
    def construct(self, logits):
        return choice.any_not_finite(logits)


class MarkSeen(nn.Cell):
    def construct(self, seen, tokens, valid):
        return choice.mark_seen(seen, tokens, valid)


class SeenRows(nn.Cell):
    def construct(self, seen, path_tokens):
        return choice.seen_rows(seen, path_tokens)


@pytest.fixture(scope="module")
def run():
    kinds = (Greedy, PenalisedGreedy, Sampled, SampledUnpenalised, NotFinite, MarkSeen, SeenRows)
    cells = {kind: kind() for kind in kinds}
    return lambda cell, *arrays: cells[cell](*[Tensor(a) for a in arrays]).asnumpy()


INF = np.float32(np.inf)


@settings(max_examples=120, deadline=None)
@given(logits=LOGITS, seen=SEEN, uniforms=UNIFORMS, params=st.tuples(PARAMS, PARAMS))
def test_sampled_choice_equals_the_full_sort_oracle(run, logits, seen, uniforms, params):
    assume((logits > -INF).any(-1).all())
    found = run(Sampled, logits, seen, params_tensor(params), uniforms)
    assert found.dtype == np.int32
    for b in range(B):
        for r in range(N):
            with np.errstate(over="ignore"):
                token, _ = reference.choose_fixed(logits[b, r], seen[b, r], params[b], uniforms[b, r])
            assert found[b, r] == token, (b, r)


WIDTH = 23


GRID = ((np.arange(256) + 0.5) / 256).astype(np.float32)


def run_grid(run, logits, params, uniforms):
    """Tokens of one logits row [at most WIDTH] for many uniforms at once, as so many tree rows."""
    rows = np.full((1, len(uniforms), WIDTH), -INF, np.float32)
    rows[:, :, : len(logits)] = logits
    return run(SampledUnpenalised, rows, params_tensor([params]), uniforms.reshape(1, -1))[0]


def grid_counts(run, logits, params):
    """How often each token is chosen over evenly spaced uniforms."""
    return np.bincount(run_grid(run, logits, params, GRID), minlength=WIDTH)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=2.5),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.77),
        SamplingParams(temperature=1.3, top_p=0.77, keep_crossing=False),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.3, top_k=9, top_p=0.95, min_p=0.04),
    ],
)
def test_each_token_gets_its_share_of_the_unit_interval(run, params):
    logits = np.random.default_rng(5).normal(size=WIDTH, scale=2).astype(np.float32)
    counts = grid_counts(run, logits, params)
    order = reference.kept(logits, params)
    mass = np.exp((logits[order].astype(np.float64) - logits.max()) / params.temperature)
    expected = np.zeros(WIDTH)
    expected[order] = len(GRID) * mass / mass.sum()
    assert np.all(counts[expected == 0] == 0)
    assert np.max(np.abs(counts - expected)) <= 1


def test_tokens_come_in_order_of_probability_then_index(run):
    tokens = run_grid(run, np.float32([1, 2, 1, 3, 2]), SamplingParams(temperature=1.0), GRID)
    assert list(dict.fromkeys(tokens.tolist())) == [3, 1, 4, 0, 2]


def test_ties_at_a_cut_keep_the_lowest_indices(run):
    logits = np.array([0, 1, 1, 1, 1, 0], dtype=np.float32)
    for params in (SamplingParams(temperature=1.0, top_k=2), SamplingParams(temperature=1.0, top_p=0.4)):
        assert np.flatnonzero(grid_counts(run, logits, params)).tolist() == [1, 2]
    assert np.flatnonzero(grid_counts(run, logits, SamplingParams(temperature=1.0, min_p=1.0))).tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_the_token_that_crosses_top_p_is_kept_and_the_next_is_not(run):
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    for top_p, kept in ((0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 3)):
        counts = grid_counts(run, logits, SamplingParams(temperature=1.0, top_p=top_p))
        assert np.count_nonzero(counts) == kept, top_p


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-24])
def test_extreme_uniforms_stay_on_tokens_with_probability(run, uniform):
    logits = np.full((B, N, V), -INF, dtype=np.float32)
    logits[0, 0, 7] = 0  # one token
    logits[0, 1, [3, 30]] = [0, -200]  # one, and one of no weight
    logits[0, 2, [5, 36]] = [-3e38, -3e38]  # two equal ones
    logits[1, 0, :] = 9  # all equal
    logits[1, 1, [2, 4]] = [-3e38, 3e38]  # too far apart for their difference
    logits[1, 2, [11, 12]] = [-20, 0]  # a rare one, in reach of the last uniform only when below 1e-7
    params = params_tensor([SamplingParams(temperature=1.0)] * B)
    found = run(Sampled, logits, np.zeros_like(logits, bool), params, np.full((B, N), uniform, np.float32))
    ends = [[7, 3, 5], [0, 4, 12]] if uniform == 0 else [[7, 3, 36], [V - 1, 4, 12]]
    assert found.tolist() == ends


def test_distribution_over_positions_is_the_softmax(run):
    logits = np.random.default_rng(3).normal(size=11, scale=1.5).astype(np.float32)
    table = uniform_table(77, 80 * len(GRID)).reshape(80, -1)
    tokens = np.concatenate([run_grid(run, logits, SamplingParams(temperature=0.9), u) for u in table])
    probability = np.exp(logits.astype(np.float64) / 0.9)
    expected = tokens.size * probability / probability.sum()
    assert tokens.size >= 20_000
    statistic = ((np.bincount(tokens, minlength=11) - expected) ** 2 / expected).sum()
    assert statistic < 29.6  # 10 degrees of freedom, 0.1 %


def test_a_row_is_chosen_bitwise_alike_alone_and_in_company(run):
    size = 49157  # no multiple of any vector width
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(1, 17, size)) * 3).astype(np.float32)
    seen = rng.random((1, 17, size)) < 0.05
    uniforms = rng.random((1, 17), dtype=np.float32)
    params = SamplingParams(temperature=1.1, top_k=size // 2, top_p=0.98, min_p=1e-5, repetition_penalty=1.3)
    together = run(Sampled, logits, seen, params_tensor([params]), uniforms)[0]
    greedy = run(Greedy, logits)[0]
    for r in range(17):
        row = slice(r, r + 1)
        alone = run(Sampled, logits[:, row], seen[:, row], params_tensor([params]), uniforms[:, row])
        assert alone[0, 0] == together[r]
        assert run(Greedy, logits[:, row])[0, 0] == greedy[r]
    other = SamplingParams(temperature=0.2)  # another request beside it, in either place
    for params_pair, place in (([other, params], 1), ([params, other], 0)):
        pair = [rng.permutation(logits[0, :3].ravel()).reshape(3, size)] * 2
        pair[place] = logits[0, :3]
        found = run(
            Sampled,
            np.stack(pair),
            np.repeat(seen[:, :3], 2, axis=0),
            params_tensor(params_pair),
            np.repeat(uniforms[:, :3], 2, axis=0),
        )
        assert found[place].tolist() == together[:3].tolist()


def test_a_large_vocabulary_agrees_with_both_oracles(run):
    rng = np.random.default_rng(1)
    size = 153376
    logits = (rng.normal(size=(1, 4, size)) * 4).astype(np.float32)
    logits[0, 1] = np.round(logits[0, 1])  # thousands of ties
    seen = np.zeros((1, 4, size), dtype=bool)
    params = SamplingParams(temperature=1.2, top_k=100_000, top_p=0.999)
    uniforms = np.array([[0.97, 0.9, 0.5, 1 - 2.0**-24]], dtype=np.float32)
    found = run(Sampled, logits, seen, params_tensor([params]), uniforms)[0]
    for r in range(4):
        token, kept = reference.choose_fixed(logits[0, r], seen[0, r], params, uniforms[0, r])
        assert found[r] == token
        assert len(kept) > 10_000
        plain, margin = reference.choose(logits[0, r], params, float(uniforms[0, r]))
        assert plain == token or margin < 2e-6


def test_a_draw_among_equals_divides_exactly(run):
    size = 49157
    border = np.array([1, 2, 3, 7, 1000, 30_000, 49_155, 49_156]) * 2**24 // size
    units = np.concatenate([border, border + 1, [0]])  # either side of where the token changes
    logits = np.zeros((1, 17, size), dtype=np.float32)
    found = run(
        Sampled,
        logits,
        np.zeros_like(logits, dtype=bool),
        params_tensor([SamplingParams(temperature=1.0)]),
        (units / 2**24).astype(np.float32).reshape(1, 17),
    )
    assert found[0].tolist() == (units * size // 2**24).tolist()


def test_greedy_takes_the_lowest_index_of_the_largest(run):
    rows = np.array([[[1, 3, 3, 2], [0, -0.0, 0, 0], [-INF, -INF, -3e38, -3e38]]], dtype=np.float32)
    assert run(Greedy, rows).tolist() == [[1, 0, 2]]
    wide = np.zeros((1, 17, 49152), dtype=np.float32)
    wide[:, :, [49151, 30000, 12345]] = 2
    assert run(Greedy, wide).tolist() == [[12345] * 17]


@settings(max_examples=60, deadline=None)
@given(logits=LOGITS, seen=SEEN, penalty=st.floats(0.5, 2, width=32))
def test_penalised_greedy_equals_numpy(run, logits, seen, penalty):
    with np.errstate(over="ignore"):
        expected = np.argmax(reference.penalised(logits, seen, penalty), -1)
    np.testing.assert_array_equal(
        run(PenalisedGreedy, logits, np.full(B, penalty, np.float32), seen), expected
    )


def test_temperature_zero_is_the_penalised_argmax_beside_a_sampled_request(run):
    logits = np.full((B, N, V), -INF, dtype=np.float32)
    logits[:, :, :4] = [5, 5, 4, 1]
    seen = np.zeros_like(logits, dtype=bool)
    seen[0, :, 0] = True
    params = [SamplingParams(repetition_penalty=2.0), SamplingParams(temperature=1.0)]
    found = run(Sampled, logits, seen, params_tensor(params), np.full((B, N), 0.999, np.float32))
    assert found.tolist() == [[1] * N, [3] * N]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, V - 1)])
def test_nan_and_plus_infinity_are_seen_in_their_request_only(run, bad, place):
    logits = np.zeros((B, N, V), dtype=np.float32)
    logits[0, :, ::2] = -INF  # legal
    logits[0, 0, 1] = 3.4028235e38
    logits[1, 0, 0] = -3.4028235e38
    assert run(NotFinite, logits).tolist() == [False, False]
    logits[1][place] = bad
    assert run(NotFinite, logits).tolist() == [False, True]


def test_a_row_with_nothing_above_minus_infinity_is_seen(run):
    logits = np.zeros((B, N, V), dtype=np.float32)
    logits[0, 1] = -INF
    assert run(NotFinite, logits).tolist() == [True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whole", [True, False])
def test_unusable_rows_still_give_an_index_in_range_and_leave_others_alone(run, bad, whole):
    logits = np.random.default_rng(0).normal(size=(B, N, V)).astype(np.float32)
    seen = np.zeros((B, N, V), dtype=bool)
    params = params_tensor([SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01)] * 2)
    uniforms = np.full((B, N), 0.7, np.float32)
    before = run(Sampled, logits, seen, params, uniforms)
    logits[1, 1, slice(None) if whole else slice(3, 9)] = bad
    after = run(Sampled, logits, seen, params, uniforms)
    assert np.all((after >= 0) & (after < V))
    before[1, 1] = after[1, 1]
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32])
def test_mark_seen_adds_valid_tokens_only(run, dtype):
    seen = np.zeros((2, 6), dtype=dtype)
    seen[0, 1] = 1
    tokens = np.array([[2, 2, 5], [0, -7, 99]], dtype=np.int32)
    valid = np.array([[True, True, False], [True, False, False]])
    found = run(MarkSeen, seen, tokens, valid)
    assert found.dtype == dtype
    assert found.astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert seen.sum() == 1


def test_seen_rows_follow_each_row_s_own_path(run):
    # Tree of request 0: root 4; rows 1 (token 1) and 2 (token 2) under it; row 3 (token 3) under row 2.
    seen = np.zeros((2, 7), dtype=bool)
    seen[0, 6] = True
    path_tokens = np.zeros((2, 3, 4), dtype=np.int32)
    path_tokens[0] = [[4, 1, 2, 3], [4, 4, 4, 2], [4, 4, 4, 4]]
    path_tokens[1] = [[0, 5, -1, 70], [0, 0, 0, 0], [0, 0, 0, 0]]  # two padding rows
    found = run(SeenRows, seen, path_tokens)
    assert found.dtype == np.bool_
    assert [np.flatnonzero(row).tolist() for row in found[0]] == [[4, 6], [1, 4, 6], [2, 4, 6], [2, 3, 4, 6]]
    assert [np.flatnonzero(row).tolist() for row in found[1][:2]] == [[0], [0, 5]]
