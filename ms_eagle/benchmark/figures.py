"""Numbers of a whole run: the tables of the paper, from the records of its turns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ms_eagle.benchmark.turn_log import Record

SPEEDUP_QUANTILES = (1, 10, 50, 90, 99)
ACCEPT_QUANTILES = (50, 90, 99)
LABELS = {
    "speedup": "tokens per second of decoding with speculation over those of the teacher alone, by turn;"
    " p1 is exceeded by 99 % of the turns (the slow tail), p99 by 1 % of them (the best turns)",
    "speedup_end_to_end": "the same, with the reading of the prompt in both times",
    "accept_L": "accepted draft tokens of a cycle, without the bonus token, over all cycles",
    "tau": "accept_L + 1: tokens that a cycle emits",
    "baseline_tps": "tokens per second of the teacher alone: all new tokens over all time of decoding",
    "speculative_tps": "the same with speculation",
    "stage_ms": "mean milliseconds of a cycle's stages, each run as a graph of its own; not part of any other"
    " figure here",
}


def summary(
    records: Sequence[Record], stage_ms: Mapping[str, float] | None, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """``summary.json``: the keys that scripts rely on first, then further ones.

    Args:
        records: of all turns, failed ones included.
        stage_ms: mean of each stage, or None where no profile was made.
        manifest: of the run.

    Figures of which there are no turns are null.
    """
    turns = [record for record in records if "error" not in record]
    failures = [record for record in records if "error" in record]
    cycles = accepted(turns)
    mean = _mean(cycles)
    return {
        "turns": len(turns),
        "tokens_match": _mean([turn["identical"] for turn in turns]),
        "speedup": spread(turns, "speedup"),
        "accept_L": {"mean": mean, **quantiles(cycles, ACCEPT_QUANTILES)},
        "tau": None if mean is None else mean + 1,
        "baseline_tps": throughput(turns, "teacher"),
        "speculative_tps": throughput(turns, "speculative"),
        "stage_ms": None if stage_ms is None else dict(stage_ms),
        "manifest": dict(manifest),
        "labels": LABELS,
        "failed": len(failures),
        "failures": [{"turn_name": r["turn_name"], **r["error"]} for r in failures],
        "differences": [
            {"turn_name": t["turn_name"], **t["difference"]} for t in turns if not t["identical"]
        ],
        "speedup_end_to_end": spread(turns, "speedup_end_to_end"),
        "slower_than_teacher": _mean([s < 1 for s in values(turns, "speedup")]),
        "first_token_s": {side: _mean(_inner(turns, side, "first_token_s")) for side in _SIDES},
        "prompt_tokens": _mean([turn["prompt_tokens"] for turn in turns]),
        "new_tokens": sum(turn["new_tokens"] for turn in turns),
        "cycles": len(cycles),
        "acceptance_by_depth": by_depth(cycles),
        "by_category": grouped(turns, lambda turn: turn["category"]),
        "by_source": grouped(turns, lambda turn: turn["source"]),
    }


_SIDES = ("teacher", "speculative")


def values(turns: Sequence[Record], key: str) -> list[float]:
    """The values of a key that are not null."""
    return [turn[key] for turn in turns if turn[key] is not None]


def _inner(turns: Sequence[Record], side: str, key: str) -> list[float]:
    return [turn[side][key] for turn in turns if turn[side][key] is not None]


def accepted(turns: Sequence[Record]) -> list[int]:
    """``accept_L`` of every cycle of all turns."""
    return [accept for turn in turns for accept in turn["accept_L"]]


def spread(turns: Sequence[Record], key: str) -> dict[str, float | None]:
    """Mean and quantiles of a figure of turns."""
    numbers = values(turns, key)
    return {"mean": _mean(numbers), **quantiles(numbers, SPEEDUP_QUANTILES)}


def quantiles(numbers: Sequence[float], percents: Sequence[int]) -> dict[str, float | None]:
    """``p<q>``: the number that q per cent lie below, interpolated between neighbours."""
    if not numbers:
        return {f"p{q}": None for q in percents}
    return {f"p{q}": float(np.percentile(numbers, q)) for q in percents}


def throughput(turns: Sequence[Record], side: str) -> float | None:
    """New tokens per second of decoding; the time of turns decoded together counts once."""
    together: dict[tuple[int, int], float] = {}
    tokens = 0
    for turn in turns:
        key = (turn["group"], turn["turn"])
        together[key] = max(together.get(key, 0.0), turn[side]["decode_s"])
        other = side == "speculative" and "speculative_token_ids" in turn
        tokens += len(turn["speculative_token_ids"]) if other else turn["new_tokens"]
    seconds = sum(together.values())
    return tokens / seconds if seconds > 0 else None


def by_depth(cycles: Sequence[int]) -> list[dict[str, float]]:
    """For each depth: the share of cycles that accepted a draft token there, of all and of those before."""
    depths = []
    for depth in range(1, max(cycles, default=0) + 1):
        reached = sum(accept >= depth for accept in cycles)
        before = sum(accept >= depth - 1 for accept in cycles)
        depths.append({"depth": depth, "share": reached / len(cycles), "given_parent": reached / before})
    return depths


def grouped(turns: Sequence[Record], key: Callable[[Record], str]) -> dict[str, dict[str, Any]]:
    """The main figures of each group of turns, by its name, in the order of appearance."""
    groups: dict[str, list[Record]] = {}
    for turn in turns:
        groups.setdefault(key(turn), []).append(turn)
    return {
        name: {
            "turns": len(own),
            "tokens_match": _mean([turn["identical"] for turn in own]),
            "speedup": _mean(values(own, "speedup")),
            "accept_L": _mean(accepted(own)),
            "new_tokens": sum(turn["new_tokens"] for turn in own),
        }
        for name, own in groups.items()
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return float(np.mean(numbers)) if len(numbers) else None
