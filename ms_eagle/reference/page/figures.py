"""Numbers of a whole trace: acceptance by depth, accepted tokens per cycle, time by stage."""

from collections import Counter
from dataclasses import dataclass

from ms_eagle.reference.trace import Trace

STAGE_NOTES = {
    "draft": "grow the candidates with the drafter, a forward a level",
    "tensorize": "choose the best and lay them out as rows",
    "verify": "one teacher forward over all rows",
    "accept": "follow the teacher's choices through the tree",
    "commit": "move accepted rows to their place",
    "extend": "give the drafter the accepted tokens",
    "host": "between two cycles: text, streaming, bookkeeping",
    "checks": "invariants, which performance mode does not run",
}
TIMED = tuple(STAGE_NOTES)


@dataclass(frozen=True)
class Figures:
    """What `figures` counts.

    Attributes:
        tokens: new tokens of all finished or unfinished answers.
        cycles: how many there were.
        accepted: cycles by ``accept_L``, from 0 to the largest possible.
        seconds: mean wall time of a cycle's stages, by stage.
    """

    tokens: int
    cycles: int
    accepted: tuple[int, ...]
    seconds: dict[str, float]

    @property
    def mean_accepted(self) -> float:
        """Mean ``accept_L``; 0 without a cycle."""
        return sum(a * count for a, count in enumerate(self.accepted)) / max(1, self.cycles)

    def reached(self, depth: int) -> int:
        """Cycles that accepted a token of ``depth`` (0: the root, which every cycle has)."""
        return sum(self.accepted[depth:])


def figures(trace: Trace) -> Figures:
    """Count over all cycles of a trace; times are those of the batch that a cycle ran in."""
    cycles = [cycle for turn in trace.turns for cycle in turn.cycles]
    counts = Counter(cycle["accept_L"] for cycle in cycles)
    deepest = max(counts, default=0)
    tree = trace.manifest.get("tree")
    if tree is not None:
        deepest = max(deepest, min(tree["depth"], tree["budget"]))
    tokens = sum(
        len(turn.finish["token_ids"]) if turn.finish else sum(len(c["emitted"]) for c in turn.cycles)
        for turn in trace.turns
    )
    seconds = {
        stage: [cycle["seconds"][stage] for cycle in cycles if stage in cycle["seconds"]] for stage in TIMED
    }
    return Figures(
        tokens=tokens,
        cycles=len(cycles),
        accepted=tuple(counts[a] for a in range(deepest + 1)),
        seconds={stage: sum(each) / len(each) for stage, each in seconds.items() if each},
    )
