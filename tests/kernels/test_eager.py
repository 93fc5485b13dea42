"""The eager kernel against plain numpy, and the shape rules every kernel shares."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from ms_eagle.kernels.contract import ContractError, check_mask_dtype, check_shapes
from ms_eagle.kernels.eager import EagerAttention

GOOD = dict(query=(2, 6, 5, 8), key=(2, 3, 11, 8), value=(2, 3, 11, 8), mask=(2, 1, 5, 11))


def attend(query, key, value, discard):
    """One query at a time."""
    out = np.zeros_like(query)
    batch, heads, rows, d = query.shape
    for b in range(batch):
        for h in range(heads):
            group = h // (heads // key.shape[1])
            for r in range(rows):
                keep = np.flatnonzero(~discard[b, 0, r])
                scores = key[b, group, keep] @ query[b, h, r] / np.sqrt(d)
                weights = np.exp(scores - scores.max())
                out[b, h, r] = weights / weights.sum() @ value[b, group, keep]
    return out


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(6, 3, 8), (4, 4, 6), (5, 1, 32)])
def test_equals_numpy(heads, kv_heads, d):
    rng = np.random.default_rng(heads)
    query = rng.standard_normal((2, heads, 5, d)).astype(np.float32)
    key, value = (rng.standard_normal((2, kv_heads, 11, d)).astype(np.float32) for _ in range(2))
    discard = rng.random((2, 1, 5, 11)) < 0.6
    discard[:, :, :, 4] = False
    got = EagerAttention(d)(*map(Tensor, (query, key, value, discard))).asnumpy()
    np.testing.assert_allclose(got, attend(query, key, value, discard), atol=1e-5)


def test_a_row_without_keys_stays_finite():
    query, key = (Tensor(np.ones((1, 2, rows, 8), np.float32)) for rows in (3, 4))
    out = EagerAttention(8)(query, key, key, Tensor(np.ones((1, 1, 3, 4), bool)))
    assert np.isfinite(out.asnumpy()).all()


def test_good_shapes_pass():
    check_shapes(**GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(query=(2, 6, 5)), "query has shape"),
        (dict(query=(2, 6, 0, 8)), "none of them empty"),
        (dict(value=(2, 3, 12, 8)), "expected the same"),
        (dict(key=(1, 3, 11, 8), value=(1, 3, 11, 8)), "key has shape"),
        (dict(key=(2, 4, 11, 8), value=(2, 4, 11, 8)), "a divisor of 6"),
        (dict(key=(2, 3, 11, 16), value=(2, 3, 11, 16)), "key has shape"),
        (dict(mask=(2, 1, 5, 10)), "mask has shape"),
        (dict(mask=(2, 6, 5, 11)), "mask has shape"),
        (dict(mask=(1, 1, 5, 11)), "mask has shape"),
    ],
)
def test_bad_shapes_are_named(change, message):
    with pytest.raises(ContractError, match=message):
        check_shapes(**{**GOOD, **change})


def test_only_bool_masks_pass():
    check_mask_dtype(ms.bool_)
    with pytest.raises(ContractError, match="expected bool with True = discard"):
        check_mask_dtype(ms.float32)
