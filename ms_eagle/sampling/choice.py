"""Choosing the next token of every row from its logits, on device.

Pure functions for use inside `construct`. A row's choice depends bitwise on that row's logits, its request's
options and its position's uniform, and on nothing else: not on the other rows, nor on how many there are.
That is what makes speculative output equal plain decoding at every temperature.

B requests, N rows (1 in plain decoding), V vocabulary. Options come as ``options.params_tensor``.
"""

import mindspore as ms
from mindspore import Tensor, ops

from ms_eagle.sampling.fixed_point import (
    MAX_SCORE,
    SCORE_BITS,
    UNIT_BITS,
    coarse_histogram,
    index_of,
    prefix_of_count,
    prefix_of_weight,
    scores,
    times_fraction,
    weight_within,
    weights,
)
from ms_eagle.sampling.options import OPTIONS

_LARGEST_FINITE = 3.4028234663852886e38
_ONE = 1 << UNIT_BITS


def penalise(logits: Tensor, penalty: Tensor, seen: Tensor) -> Tensor:
    """Repetition penalty: logits of seen tokens are divided by it when positive, else multiplied.

    # logits float32 [B, N, V], penalty float32 [B], seen bool [B, N, V] -> [B, N, V]
    Source: Keskar et al., CTRL (arXiv 1909.05858), section 4.1, in transformers' sign-aware form.
    """
    mark = seen.astype(ms.float32)
    # Exactly the penalty where seen, exactly 1 elsewhere.
    factor = mark * penalty.reshape(penalty.shape[0], 1, 1) + (1.0 - mark)
    # One of the two terms is zero: the arithmetic form of a select, and several times faster.
    return ops.maximum(logits, 0.0) / factor + ops.minimum(logits, 0.0) * factor


def without_ends(logits: Tensor, positions: Tensor, params: Tensor) -> Tensor:
    """Logits with -inf for the tokens that end a sequence, in rows where it is shorter than `min_length`.

    # logits float32 [B, N, V], positions int32 [B, N], params float32 [B, 15] -> [B, N, V]
    """
    rows, _, vocabulary = logits.shape
    ends = params[:, len(OPTIONS) :].astype(ms.int32)
    ends = _row_hits(ends, ops.ones_like(ends), vocabulary).reshape(rows, 1, vocabulary)
    length = (positions + 1).astype(ms.float32)
    early = (length < params[:, OPTIONS.index("min_length")].reshape(rows, 1)).astype(ms.int32)
    banned = ends * early.reshape(rows, -1, 1) > 0
    return ops.select(banned, ops.full_like(logits, -float("inf")), logits)


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest index of the largest logit, and that logit.

    # logits float32 [B, N, V] -> int32 [B, N], float32 [B, N, 1]
    `ArgMaxWithValue` documents the first maximum on every platform; `ops.argmax` and `ops.topk` promise
    nothing.
    """
    index, value = ops.ArgMaxWithValue(axis=2, keep_dims=True)(logits)
    rows, count, _ = logits.shape
    return index.reshape(rows, count).astype(ms.int32), value


def choose_greedy(logits: Tensor) -> Tensor:
    """Argmax of every row, the lowest index on ties.

    # logits float32 [B, N, V] -> int32 [B, N]
    """
    index, _ = argmax(logits)
    return index


def choose_sampled(logits: Tensor, seen: Tensor | None, params: Tensor, uniforms: Tensor) -> Tensor:
    """One seeded draw per row: inverse CDF over the filtered tokens, best first, ties by index.

    # logits float32 [B, N, V], seen bool [B, N, V] or None (no penalty), params float32 [B, 15],
    # uniforms float32 [B, N] in [0, 1) -> int32 [B, N]

    Order: repetition penalty, temperature, top_k, top_p (the token that crosses is kept, unless the request
    says otherwise), min_p. Ties at a
    cut keep the lowest indices. A row of temperature 0 gives the argmax after the penalty. A token that a
    filter removed is never returned, nor one more than 27.7 nats (a factor 2**-40) below the best. Rows
    without a usable distribution (see `any_not_finite`) give some index in range.
    """
    rows = params.shape[0]
    if seen is not None:
        logits = penalise(logits, params[:, 4], seen)
    greedy, best = argmax(logits)
    temperature = params[:, 0].reshape(rows, 1, 1)
    # A request of temperature 0 is answered by `greedy`; 1 keeps its unused arithmetic ordinary.
    score = scores(logits, best, temperature + (temperature <= 0).astype(ms.float32))
    weight = weights(score)
    coarse_weight = coarse_histogram(score, weight)
    mass = _kept_weight(score, weight, coarse_weight, params)
    draw = (uniforms.reshape(rows, -1, 1) * float(_ONE)).astype(ms.int32)
    draw = ops.minimum(ops.maximum(draw, 0), _ONE - 1).astype(ms.int64)
    last, rank, _ = prefix_of_weight(score, weight, coarse_weight, times_fraction(mass, draw) + 1)
    sampled = index_of(score, last, rank)
    hot = (params[:, 0] > 0).astype(ms.int32).reshape(rows, 1)
    return sampled * hot + greedy * (1 - hot)


def _kept_weight(score: Tensor, weight: Tensor, coarse_weight: Tensor, params: Tensor) -> Tensor:
    # Every filter keeps a best-first prefix, so together they keep the lightest of their prefixes.
    # score, weight [B, N, V], coarse_weight [B, N, K], params [B, 15] -> int64 [B, N, 1]
    rows, count, vocabulary = score.shape
    top_k = ops.minimum(params[:, 1], float(vocabulary)).astype(ms.int32).reshape(rows, 1, 1)
    kept = prefix_of_count(score, weight, ops.broadcast_to(top_k, (rows, count, 1)))
    top_p = ops.maximum((params[:, 2] * float(_ONE)).astype(ms.int64), 1).reshape(rows, 1, 1)
    target = ops.maximum(times_fraction(kept, top_p), 1)
    last, _, nucleus = prefix_of_weight(score, weight, coarse_weight, target)
    crossing = weights(last)
    dropped = (nucleus > crossing).astype(ms.int64) * (params[:, 5] == 0).astype(ms.int64).reshape(rows, 1, 1)
    nucleus = nucleus - crossing * dropped  # the best token stays, whatever it crosses
    nats = ops.minimum(params[:, 3] * float(1 << SCORE_BITS), float(MAX_SCORE)).astype(ms.int32)
    return ops.minimum(nucleus, weight_within(score, weight, nats.reshape(rows, 1, 1)))


def any_not_finite(logits: Tensor) -> Tensor:
    """Whether a request's logits hold NaN or +inf, or a row with nothing above -inf: no choice is meaningful.

    # logits float32 [B, N, V] -> bool [B]
    """
    bad = 1.0 - (logits <= _LARGEST_FINITE).astype(ms.float32)  # NaN fails every comparison
    _, any_bad = argmax(bad)
    return ops.logical_or(ops.ReduceMax(False)(any_bad, (1, 2)) > 0, nothing_left(logits))


def nothing_left(logits: Tensor) -> Tensor:
    """Whether a row of a request has nothing above -inf, as where `without_ends` took all there was.

    # logits float32 [B, N, V] -> bool [B]
    """
    _, best = argmax(logits)
    return ops.ReduceMax(False)((best < -_LARGEST_FINITE).astype(ms.float32), (1, 2)) > 0


def mark_seen(seen: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
    """`seen` with the valid tokens added; a new tensor, the argument is left alone.

    # seen bool or integer [B, V], tokens int32 [B, T], valid bool [B, T] -> [B, V], dtype of seen
    Tokens of invalid entries may hold anything.
    """
    hits = _row_hits(tokens, valid.astype(ms.int32), seen.shape[1])
    return ((hits + seen.astype(ms.int32)) > 0).astype(seen.dtype)


def seen_rows(seen: Tensor, path_tokens: Tensor) -> Tensor:
    """What each tree row has seen: the committed tokens and those of its own path, never another branch's.

    # seen bool or integer [B, V], path_tokens int32 [B, D+1, N] (row r's ancestors and itself in [:, :, r])
    # -> bool [B, N, V]
    Tokens out of range, as padding rows may hold, are moved into it.
    """
    rows, vocabulary = seen.shape
    levels, count = path_tokens.shape[1], path_tokens.shape[2]
    own = ops.transpose(path_tokens, (0, 2, 1)).reshape(rows * count, levels)
    hits = _row_hits(own, ops.ones_like(own), vocabulary).reshape(rows, count, vocabulary)
    return (hits + seen.astype(ms.int32).reshape(rows, 1, vocabulary)) > 0


def _row_hits(tokens: Tensor, amount: Tensor, vocabulary: int) -> Tensor:
    # tokens int32 [R, T], amount int32 [R, T] -> sum of the amounts per token, int32 [R, vocabulary]
    rows = tokens.shape[0]
    inside = ops.minimum(ops.maximum(tokens, 0), vocabulary - 1)
    first = ops.arange(0, rows, 1).astype(ms.int32).reshape(rows, 1) * vocabulary
    hits = ops.scatter_nd((inside + first).reshape(-1, 1), amount.reshape(-1), (rows * vocabulary,))
    return hits.reshape(rows, vocabulary)
