"""The main figures of a run as a few lines of text."""

from collections.abc import Mapping
from typing import Any


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A table for a terminal; a scripted drafter is named first."""
    drafter = summary["manifest"].get("drafter")
    speedup, accepted = summary["speedup"], summary["accept_L"]
    match, failed = summary["tokens_match"], summary["failed"]
    found = ["synthetic drafter: a measurement of the machinery, not of a head"] * (drafter == "synthetic")
    found += [
        f"{summary['turns']} turns measured, {failed} failed",
        f"identical tokens   {'-' if match is None else format(match, '.1%')} of the turns",
        f"speed-up by turn   mean {number(speedup['mean'])}   slow tail p1 {number(speedup['p1'])}"
        f"   p10 {number(speedup['p10'])}   median {number(speedup['p50'])}   p90 {number(speedup['p90'])}"
        f"   best p99 {number(speedup['p99'])}",
        f"accept_L           mean {number(accepted['mean'])} (tau {number(summary['tau'])})"
        f"   median {number(accepted['p50'])}   p90 {number(accepted['p90'])}"
        f"   p99 {number(accepted['p99'])}",
        f"tokens per second  teacher alone {number(summary['baseline_tps'], 1)}"
        f"   with speculation {number(summary['speculative_tps'], 1)}",
    ]
    stages = summary["stage_ms"]
    if stages:
        shown = "   ".join(f"{name} {value:.1f}" for name, value in stages.items())
        found.append(f"ms a cycle         {shown}   (stages run apart)")
    return found


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
