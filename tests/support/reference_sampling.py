"""Slow numpy oracles for choosing a token, one row at a time.

`kept` and `choose` follow the textbook definition in float64. `choose_fixed` follows the fixed-point
definition documented in `sampling.fixed_point`, with a full sort and Python's unbounded integers, so that the
device must agree with it exactly.
"""

import numpy as np

from ms_eagle.sampling.options import SamplingParams


def penalised(logits, seen, penalty):
    """float32 [V], bool [V] -> float32 [V]."""
    with np.errstate(over="ignore"):
        factor = np.float32(penalty)
        changed = np.where(logits > 0, logits / factor, logits * factor).astype(np.float32)
    return np.where(seen, changed, logits)


def without_ends(logits, length, params: SamplingParams):
    """Logits after a sequence of ``length`` tokens, without the tokens that may not end it yet."""
    banned = np.isin(np.arange(len(logits)), params.end_ids) & (length < params.min_length)
    return np.where(banned, np.float32(-np.inf), logits)


def kept(logits, params: SamplingParams):
    """Kept token ids, best first, of penalised logits; float64 throughout."""
    scaled = logits.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        mass = np.exp(scaled[order] - scaled[order[0]])
        probability = mass / mass.sum()
        preceding = np.cumsum(probability) - probability
        reached = preceding if params.keep_crossing else np.cumsum(probability)
        order = order[(reached < params.top_p) | (np.arange(len(order)) == 0)]
    return order[np.exp(scaled[order] - scaled[order[0]]) >= params.min_p]


def choose(logits, params: SamplingParams, uniform):
    """Token of penalised logits and how far (in probability) the draw lies from the nearest border."""
    order = kept(logits, params)
    scaled = logits[order].astype(np.float64) / params.temperature
    mass = np.exp(scaled - scaled[0])
    cumulative = np.cumsum(mass / mass.sum())
    place = min(int(np.searchsorted(cumulative, uniform, side="right")), len(order) - 1)
    return int(order[place]), float(np.min(np.abs(cumulative[:-1] - uniform), initial=1.0))


def fixed_scores(logits, temperature):
    """float32 [V] with at least one finite value -> int64 [V]."""
    with np.errstate(over="ignore", invalid="ignore"):
        distance = (logits.max() - logits) / (np.float32(temperature) * np.float32(2.0**-22))
    return np.minimum(distance, np.float32(2**27 - 8)).astype(np.int64)


def fixed_weights(scores):
    """int64 -> int64, the formula in the documented order of float32 operations."""
    high, low = scores >> 13, scores & 0x1FFF
    centre = (2.0**40 * np.exp(-(high + 0.5) / 512)).astype(np.float32)
    step = np.float32(1 + 2.0**-10) - low.astype(np.float32) * np.float32(2.0**-22)
    return (centre * step).astype(np.int64)


def choose_fixed(logits, seen, params: SamplingParams, uniform):
    """Token id and the list of kept ids with a positive weight, exactly as the device must find them."""
    logits = penalised(logits, seen, params.repetition_penalty)
    if params.temperature == 0:
        best = int(np.argmax(logits))
        return best, [best]
    scores = fixed_scores(logits, params.temperature)
    order = np.argsort(scores, kind="stable")
    weights = [int(w) for w in fixed_weights(scores[order])]
    size = len(order) if params.top_k == 0 else min(params.top_k, len(order))
    top_p = max(int(np.float32(params.top_p) * 2**24), 1)
    target, preceding, nucleus = max(sum(weights[:size]) * top_p // 2**24, 1), 0, 0
    while preceding < target:
        preceding += weights[nucleus]
        nucleus += 1
    if not params.keep_crossing and np.float32(params.top_p) < 1 and preceding > weights[nucleus - 1]:
        nucleus -= 1
    if params.min_p > 0:
        limit = int(min(np.float32(-np.log(params.min_p)) * np.float32(2**22), np.float32(2**27 - 8)))
        nucleus = min(nucleus, int(np.sum(scores <= limit)))
    ids, weights = [int(i) for i in order[:nucleus]], weights[:nucleus]
    place = sum(weights) * int(np.float32(uniform) * 2**24) // 2**24
    for token, weight in zip(ids, weights, strict=True):
        if place < weight:
            return token, [i for i, w in zip(ids, weights, strict=True) if w > 0]
        place -= weight
    raise ValueError("the draw fell off the end of the distribution")
