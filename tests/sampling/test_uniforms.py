import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_eagle.errors import UserError
from ms_eagle.sampling.uniforms import uniform, uniform_table

MASK = 2**64 - 1


def philox4x64(counter, key):
    """Philox4x64-10 written out in Python integers from the paper's round function."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(p1 >> 64) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 64) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def test_written_out_philox_meets_its_known_answer():
    assert philox4x64([0] * 4, [0, 0]) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@given(seed=st.integers(0, MASK), position=st.integers(0, 2**40))
def test_one_position_is_as_documented(seed, position):
    word = philox4x64([position // 4 + 1, 0, 0, 0], [seed, 0])[position % 4]
    assert uniform(seed, position) == (word >> 40) / 2**24


@settings(max_examples=30)
@given(seed=st.integers(0, MASK), count=st.integers(0, 70), longer=st.integers(0, 9))
def test_table_entries_depend_on_seed_and_position_alone(seed, count, longer):
    table = uniform_table(seed, count)
    assert table.dtype == np.float32
    assert table.shape == (count,)
    np.testing.assert_array_equal(table, uniform_table(seed, count + longer)[:count])
    np.testing.assert_array_equal(table, [uniform(seed, p) for p in range(count)])


def test_values_lie_on_the_24_bit_grid_below_one_and_spread_evenly():
    table = uniform_table(1234, 100_000).astype(np.float64)
    assert table.min() >= 0
    assert table.max() < 1
    np.testing.assert_array_equal(table * 2**24, np.floor(table * 2**24))
    counts = np.bincount((table * 16).astype(int), minlength=16)
    assert ((counts - 6250) ** 2 / 6250).sum() < 37.7  # chi-squared, 15 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(table[:-1], table[1:])[0, 1]) < 0.01


def test_seeds_differ():
    tables = {uniform_table(seed, 8).tobytes() for seed in [0, 1, 2, 2**32, 2**63, MASK]}
    assert len(tables) == 6


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", True, None])
def test_bad_seeds_are_refused_with_the_range(seed):
    expected = r"seed: found .*, expected an integer from 0 to 18446744073709551615"
    for call in (lambda: uniform(seed, 0), lambda: uniform_table(seed, 4)):
        with pytest.raises(UserError, match=expected):
            call()


def test_negative_position_or_count_is_refused():
    with pytest.raises(ValueError, match="position"):
        uniform(0, -1)
    with pytest.raises(ValueError, match="count"):
        uniform_table(0, -1)
