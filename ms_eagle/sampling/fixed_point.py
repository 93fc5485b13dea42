"""The sampled distribution in whole numbers: scores, weights and exact sums over best-first prefixes.

Why integers: float sums depend on the order of addition, so the token could change with the number of rows
in the batch or with the device. Here floats end at two element-wise results and every sum is exact:

- **score** `q` int32: the distance below the row's best logit, after temperature, in units of `2**-22` nats,
  at most `MAX_SCORE` (32 nats). The unit is below the spacing of float32 logits of 4 and more. Best first
  means ascending `(q, index)`.
- **weight** `w` int64: `2**40 * exp(-q * 2**-22)`, relative error below 7e-7 (or one unit), a function of `q`
  alone; 0 beyond 27.7 nats. A token of weight 0 is never chosen, and -inf is one.

Every filter keeps a best-first prefix, and a draw is the end of a prefix too. A prefix is found from a target
(a count of tokens or a sum of weights) without a sort: two histograms, over the high 14 bits of the score and
then over the low 13 bits within one bin, name the score at which the running sum reaches the target; tokens
that share this score count in index order. On a CPU all of it costs about half of sorting the vocabulary.

Functions for use inside `construct`, all shapes static, every index in range whatever the logits hold (NaN
included). B requests, N rows, V vocabulary.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

SCORE_BITS = 22
"""Fraction bits of a score: one nat is `2**22`."""

WEIGHT_BITS = 40
"""The best token weighs about `2**40`; sums over 2**18 tokens stay below `2**58`."""

UNIT_BITS = 24
"""Fractions (top_p, uniforms) are integers in units of `2**-24`."""

_LOW_BITS = 13
_LOW = 1 << _LOW_BITS
_BINS = 1 << 14
MAX_SCORE = (_BINS << _LOW_BITS) - 8
"""Scores saturate here, the largest float32 below `2**27`; its weight is 0."""

_BIN_NATS = 2.0 ** (_LOW_BITS - SCORE_BITS)
# exp at the middle of each bin; within a bin, a first-order step is exact to (bin / 2)**2 / 2 = 4.8e-7
DECAY = Tensor((2.0**WEIGHT_BITS * np.exp(-(np.arange(_BINS) + 0.5) * _BIN_NATS)).astype(np.float32))


def scores(logits: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Scores int32 of logits.

    # logits float32 [B, N, V], best [B, N, 1] (the largest logit), temperature [B, 1, 1] above 0 -> [B, N, V]
    """
    unit = temperature * (2.0**-SCORE_BITS)
    nearest = ops.minimum((best - logits) / unit, float(MAX_SCORE))
    # The maximum catches NaN, which a cast may turn into any integer.
    return ops.minimum(ops.maximum(nearest.astype(ms.int32), 0), MAX_SCORE)


def weights(score: Tensor) -> Tensor:
    """Weights int64 of scores int32, of any shape.

    Only operations with one correctly rounded result are used, so equal scores weigh the same everywhere.
    """
    fine = score.astype(ms.float32)  # exact: a score has at most 24 significant bits
    bins = (fine * (1.0 / _LOW)).astype(ms.int32)
    low = fine - bins.astype(ms.float32) * float(_LOW)
    step = (1.0 + 0.5 * _BIN_NATS) - low * (2.0**-SCORE_BITS)
    return (ops.gather(DECAY, bins, 0) * step).astype(ms.int64)


def times_fraction(total: Tensor, units: Tensor) -> Tensor:
    """Whole part of `total * units / 2**24`, exactly.

    # total int64 below 2**62, units int64 in [0, 2**24], shapes that broadcast -> int64
    """
    high = ops.bitwise_right_shift(total, UNIT_BITS)
    low = total - high * (1 << UNIT_BITS)
    return high * units + ops.bitwise_right_shift(low * units, UNIT_BITS)


def running_histogram(bins: Tensor, values: Tensor, size: int) -> Tensor:
    """Running sum over the bins of a histogram of each row.

    # bins int32 [B, N, V] in [0, size), values integer [B, N, V] -> [B, N, size], dtype of values
    """
    rows, count, _ = bins.shape
    first = ops.arange(0, rows * count, 1).astype(ms.int32).reshape(rows, count, 1) * size
    sums = ops.scatter_nd((bins + first).reshape(-1, 1), values.reshape(-1), (rows * count * size,))
    return ops.cumsum(sums.reshape(rows, count, size), -1)


def coarse_histogram(score: Tensor, values: Tensor) -> Tensor:
    """Running histogram over the high bits of the scores.

    # score int32 [B, N, V], values integer [B, N, V] -> [B, N, 2**14]
    """
    return running_histogram((score.astype(ms.float32) * (1.0 / _LOW)).astype(ms.int32), values, _BINS)


def reach(running: Tensor, target: Tensor) -> Tensor:
    """First bin whose running sum is at least the target (the last bin if none is).

    # running [B, N, K] nondecreasing, target [B, N, 1] of the same dtype -> int32 [B, N, 1]
    """
    return ops.minimum(ops.searchsorted(running, target, out_int32=True), running.shape[2] - 1)


def before(running: Tensor, bins: Tensor) -> Tensor:
    """Sum of all bins before the given one.

    # running [B, N, K], bins int32 [B, N, 1] in [0, K) -> [B, N, 1], dtype of running
    """
    previous = ops.gather_elements(running, 2, ops.maximum(bins - 1, 0))
    return previous * (bins > 0).astype(running.dtype)


def _fine_bins(score: Tensor, coarse: Tensor) -> Tensor:
    # Low bits within the coarse bin, plus 1; all better scores in bin 0, all worse ones in the last.
    # score [B, N, V], coarse [B, N, 1] -> [B, N, V] in [0, 2**13 + 2)
    return ops.minimum(ops.maximum(score - (coarse * _LOW - 1), 0), _LOW + 1)


def _score_of(coarse: Tensor, fine: Tensor) -> Tensor:
    # Inverse of _fine_bins for a fine bin in [1, 2**13]; clamped for rows without a target in reach.
    return ops.minimum(coarse * _LOW + ops.maximum(fine - 1, 0), MAX_SCORE)


def prefix_of_count(score: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """Weight of the best `count` tokens, ties by index.

    # score [B, N, V], weight [B, N, V], count int32 [B, N, 1] in [1, V] -> int64 [B, N, 1]
    """
    ones = ops.ones_like(score)
    coarse = reach(coarse_histogram(score, ones), count)
    bins = _fine_bins(score, coarse)
    counts = running_histogram(bins, ones, _LOW + 2)
    fine = reach(counts, count)
    better = before(running_histogram(bins, weight, _LOW + 2), fine)
    tied = (count - before(counts, fine)).astype(ms.int64)
    return better + tied * weights(_score_of(coarse, fine))


def prefix_of_weight(
    score: Tensor, weight: Tensor, coarse_weight: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Shortest best-first prefix whose weight reaches the target.

    # score, weight [B, N, V], coarse_weight = coarse_histogram(score, weight), target int64 [B, N, 1]
    # -> each [B, N, 1]: score of its last token int32, how many tokens of that score it holds int32,
    # its weight int64
    """
    coarse = reach(coarse_weight, target)
    sums = running_histogram(_fine_bins(score, coarse), weight, _LOW + 2)
    fine = reach(sums, target)
    better = before(sums, fine)
    last = _score_of(coarse, fine)
    each = ops.maximum(weights(last), 1)
    missing = target - better
    # Integer division may run through floats. A float quotient of at most V (below 2**21) is off by less than
    # 1, so one less than it, cut, is not too many: exact products settle the rest.
    guess = ops.minimum(missing.astype(ms.float32) / each.astype(ms.float32), float(1 << 22)).astype(ms.int64)
    tied = ops.maximum(guess - 1, 0)
    for _ in range(3):
        tied = tied + (tied * each < missing).astype(ms.int64)
    return last, tied.astype(ms.int32), better + tied * each


def weight_within(score: Tensor, weight: Tensor, limit: Tensor) -> Tensor:
    """Weight of all tokens whose score is at most the limit.

    # score [B, N, V], weight [B, N, V], limit int32 [B, 1, 1] -> int64 [B, N, 1]
    """
    kept = ((score - limit) <= 0).astype(ms.int64)  # a subtraction broadcasts far faster than a comparison
    return ops.ReduceSum(True)(weight * kept, 2)


def index_of(score: Tensor, last: Tensor, rank: Tensor) -> Tensor:
    """Index of the `rank`-th token (from 1, by index) whose score is `last`.

    # score [B, N, V], last int32 [B, N, 1], rank int32 [B, N, 1] -> int32 [B, N] in [0, V)
    """
    same = ((score - last) == 0).astype(ms.int32)
    rows, count, _ = score.shape
    return reach(ops.cumsum(same, -1), rank).reshape(rows, count)
