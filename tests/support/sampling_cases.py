"""Logits, options and uniforms as a choice meets them."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ms_eagle.sampling.options import SamplingParams


def as_float32(value):
    return float(np.float32(value))


LOGIT = st.one_of(
    st.floats(-30, 30, width=32, allow_subnormal=False),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 2 + 2.0**-22, -5.0]),  # ties and near ties
    st.sampled_from([-np.inf, 1e38, -1e38, 1e-30]).map(as_float32),
)

B, N, V = 2, 3, 37

LOGITS = hnp.arrays(np.float32, (B, N, V), elements=LOGIT, fill=st.sampled_from([0.0, 1.5, -np.inf, -40.0]))

SEEN = hnp.arrays(np.bool_, (B, N, V))

UNIFORMS = hnp.arrays(
    np.float32, (B, N), elements=st.one_of(st.sampled_from([0, 2**24 - 1]), st.integers(0, 2**24 - 1))
).map(lambda j: (j * np.float32(2.0**-24)).astype(np.float32))

PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.sampled_from([0.0, 1.0, 1e-6, 100.0]), st.floats(0.05, 3)),
    top_k=st.one_of(st.just(0), st.integers(1, V + 3)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2)),
    keep_crossing=st.booleans(),
    min_length=st.integers(0, 4),
    end_ids=st.lists(st.integers(0, V - 1), max_size=2),
)
