"""The main figures of a run as a few lines of text, and how figures are written."""

from collections.abc import Mapping
from typing import Any

from ms_eagle.drafters import registry
from ms_eagle.pages.columns import aligned


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A table for a terminal; a scripted drafter is named first."""
    speedup, accepted, match = summary["speedup"], summary["accept_L"], summary["tokens_match"]
    tails = _named(accepted, p50="median", p90="p90", p99="p99")
    rows = [
        ("identical tokens", f"{'-' if match is None else format(match, '.1%')} of the turns"),
        (
            "speed-up by turn",
            _named(
                speedup, mean="mean", p1="slow tail p1", p10="p10", p50="median", p90="p90", p99="best p99"
            ),
        ),
        ("accept_L", f"mean {number(accepted['mean'])} (tau {number(summary['tau'])})   {tails}"),
        (
            "tokens per second",
            f"teacher alone {number(summary['baseline_tps'], 1)}   with speculation "
            f"{number(summary['speculative_tps'], 1)}",
        ),
    ]
    if summary["stage_ms"]:
        stages = "   ".join(f"{name} {value:.1f}" for name, value in summary["stage_ms"].items())
        rows.append(("ms a cycle", f"{stages}   (stages run apart)"))
    return [
        *registry.notices(summary["manifest"].get("drafter")),
        f"{summary['turns']} turns measured, {summary['failed']} failed",
        *aligned(rows, left=2),
    ]


def _named(values: Mapping[str, float | None], **names: str) -> str:
    return "   ".join(f"{name} {number(values[key])}" for key, name in names.items())


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A speed-up, ``1.23x``, or a dash."""
    return "-" if value is None else f"{value:.2f}x"


def share(value: float | None) -> str:
    """A part of 1 in per cent, or a dash."""
    return "-" if value is None else "100 %" if value == 1 else f"{100 * value:.1f} %"
