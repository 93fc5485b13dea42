"""The figures that the EAGLE-Pangu paper (arXiv 2603.08088) reports, to stand beside ours.

Its system: a Pangu teacher on Ascend NPUs, batch 1, greedy, MT-Bench and HumanEval prompts (240 turns). Only
figures with a source we could read are here: the abstract, or a public summary of the paper's tables, which
agrees with the abstract where both have a figure. The paper prints no p1 or p10.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ABSTRACT = "abstract"
TABLES = "tables 1 to 3, from a public summary"


@dataclass(frozen=True)
class Figure:
    """One figure of the paper.

    Attributes:
        name: what it is.
        paper: its value there.
        source: where that is from.
        keys: the way to ours in ``summary.json``; empty where a run of one setting has none.
        unit: what follows the number.
    """

    name: str
    paper: float
    source: str
    keys: tuple[str, ...] = ()
    unit: str = ""

    def ours(self, summary: Mapping[str, Any]) -> float | None:
        """The figure of a run, or None."""
        value: Any = summary if self.keys else None
        for key in self.keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


FIGURES = (
    Figure("turns", 240, ABSTRACT, ("turns",)),
    Figure("speed-up, mean", 1.27, ABSTRACT, ("speedup", "mean"), "x"),
    Figure("speed-up, p90 (a good turn)", 1.84, TABLES, ("speedup", "p90"), "x"),
    Figure("speed-up, p99 (among the best turns)", 2.46, ABSTRACT, ("speedup", "p99"), "x"),
    Figure("teacher alone, tokens per second", 17.65, TABLES, ("baseline_tps",)),
    Figure("with speculation, tokens per second", 22.42, TABLES, ("speculative_tps",)),
    Figure("accept_L, mean", 3.17, TABLES, ("accept_L", "mean")),
    Figure("accept_L, median", 3, TABLES, ("accept_L", "p50")),
    Figure("accept_L, p99", 8, TABLES, ("accept_L", "p99")),
)
OURS_ALONE = (
    ("speed-up, p1 (the slow tail)", ("speedup", "p1"), "x"),
    ("speed-up, p10", ("speedup", "p10"), "x"),
    ("identical tokens, share of turns", ("tokens_match",), ""),
)
NOTE = (
    "The paper's teacher, device and drafter are others than this run's: the columns show the kind of gain, "
    "not a race. Quantiles are over turns: its “p99 2.46x” is its best turns, not its tail."
)
SWEEP_NOTE = (
    "The paper's best budget is M = 16 with D = 10 (1.48x, 256 new tokens), and a drafter that sees only the "
    "last W = 128 tokens falls to accept_L 1.48 and 0.69x (a public summary of its tables 2 and 3)."
)
