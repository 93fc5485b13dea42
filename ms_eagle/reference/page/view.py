"""A trace as one HTML page."""

from collections.abc import Iterator
from typing import Any

from ms_eagle.drafters import registry
from ms_eagle.pages.parts import Bar, Card, Figure, facts
from ms_eagle.pages.template import render
from ms_eagle.reference.page.figures import STAGE_NOTES, TIMED, Figures, figures
from ms_eagle.reference.page.tree import draw, percent, visible
from ms_eagle.reference.trace import Record, Trace, Turn


def page(trace: Trace) -> str:
    """The whole page."""
    numbers = figures(trace)
    manifest = {key: value for key, value in trace.manifest.items() if key != "record"}
    drafter = registry.label(manifest.get("drafter"), "Unfinished run")
    speculates = manifest.get("drafter") not in (None, registry.NONE)
    return render(
        "trace.html",
        kicker="ms_eagle trace",
        title=f"{drafter} on {_model(manifest)}",
        notices=_notices(trace),
        facts={"made": manifest.get("created"), "batch": manifest.get("batch"), **facts(manifest)},
        manifest=manifest,
        errors=[_error(error) for error in trace.errors],
        cards=_cards(trace, numbers, speculates),
        figures=_charts(numbers, speculates) if numbers.cycles else [],
        turns=[_turn(turn, speculates) for turn in trace.turns],
    )


def _model(manifest: Record) -> str:
    origin = (manifest.get("weights") or {}).get("model", {}).get("origin")
    return str(origin or manifest.get("config", {}).get("model", {}).get("source", "?"))


def _notices(trace: Trace) -> list[str]:
    notices = registry.notices(trace.manifest.get("drafter"))
    if trace.torn:
        notices.append("The trace breaks off inside a line: its process was ended while it wrote.")
    elif any(turn.finish is None for turn in trace.turns) and not trace.errors:
        notices.append("The trace ends before its last answer does.")
    return notices


def _error(error: Record) -> dict[str, Any]:
    """What went wrong, and the trees of the rows as far as they were known."""
    rows = []
    for row in error.get("rows", []):
        name = f"{row['prompt']}, turn {row['turn']}"
        tree = row.get("tree") and draw(row["tree"], [], [], [], f"the tree of {name}")
        rows.append((f"{name}: {len(row['token_ids'])} tokens, n = {row['n']}", tree))
    stage = f", in stage {error['stage']}" if error.get("stage") else ""
    return {"title": f"{error.get('error')}{stage}", "message": error.get("message"), "rows": rows}


def _cards(trace: Trace, numbers: Figures, speculates: bool) -> list[Card]:
    cards = [
        Card("answers", f"{len(trace.turns)}"),
        Card("tokens", f"{numbers.tokens}"),
        Card("cycles", f"{numbers.cycles}"),
    ]
    if numbers.cycles and speculates:
        mean = numbers.mean_accepted
        cards += [Card("accept_L, mean", f"{mean:.2f}"), Card("tau = accept_L + 1", f"{mean + 1:.2f}")]
    return cards


def _charts(numbers: Figures, speculates: bool) -> list[Figure]:
    stages = [
        Bar(stage, mean, _milliseconds(mean), "time", STAGE_NOTES[stage])
        for stage, mean in numbers.seconds.items()
    ]
    note = "mean per cycle, stage by stage with host reads between: not the speed of performance mode"
    times = Figure("Time by stage", note, bars=stages)
    return [_by_depth(numbers), _histogram(numbers), times] if speculates else [times]


def _by_depth(numbers: Figures) -> Figure:
    bars = []
    for depth in range(1, len(numbers.accepted)):
        reached, before = numbers.reached(depth), numbers.reached(depth - 1)
        share = reached / numbers.cycles
        given = f"; {reached / before:.0%} of the {before} that got to depth {depth - 1}" if before else ""
        note = f"{reached} of {numbers.cycles} cycles{given}"
        bars.append(Bar(f"depth {depth}", share, percent(share), "good", note))
    return Figure("Acceptance by depth", "cycles that accepted a draft token this deep", bars=bars, most=1)


def _histogram(numbers: Figures) -> Figure:
    bars = [
        Bar(f"{a}", count, f"{count}", "good", f"{count} cycles accepted {a} draft tokens")
        for a, count in enumerate(numbers.accepted)
    ]
    return Figure("accept_L", "cycles by accepted draft tokens, bonus not counted", bars=bars)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def _turn(turn: Turn, speculates: bool) -> dict[str, Any]:
    prefill, finish = turn.prefill, turn.finish
    about = [f"{len(prefill['token_ids'])} prompt tokens"]
    if prefill["reused"]:
        about.append(f"{prefill['reused']} of them reused")
    if finish:
        about += [f"{finish['new_tokens']} new tokens", f"ended by {finish['finish_reason']}"]
        if finish["checks"]:
            worst = max(finish["checks"]["cache_difference"].values(), default=0.0)
            about.append(f"equal to the teacher alone, caches within {worst:.1g} of a fresh run")
            if finish["checks"]["ties"]:
                about.append(f"{len(finish['checks']['ties'])} near ties")
    else:
        about.append("unfinished")
    return {
        "name": f"{prefill['prompt']}, turn {prefill['turn']}",
        "note": " · ".join(about),
        "prompt": prefill["text"],
        "tokens": _tokens(turn),
        "cycles": [_cycle(number, cycle, speculates) for number, cycle in enumerate(turn.cycles, 1)],
    }


def _tokens(turn: Turn) -> Iterator[dict[str, Any]]:
    """The emitted tokens by how they came to be; ``sign`` stands for a piece that would not be seen."""
    left = len(turn.finish["token_ids"]) if turn.finish else None
    for number, cycle in enumerate(turn.cycles, 1):
        for place, piece in enumerate(cycle["pieces"]):
            bonus = place == len(cycle["pieces"]) - 1
            kind = "bonus" if bonus else "drafted"
            if left is not None:
                kind = kind if left > 0 else f"{kind} dropped"
                left -= 1
            why = "the teacher's own token" if bonus else f"drafted at depth {place + 1}"
            note = f"cycle {number}: {why}, token {cycle['emitted'][place]}"
            sign = visible(cycle["choice_pieces"][cycle["path"][place]])
            yield {"piece": piece, "sign": sign, "kind": kind, "cycle": number, "note": note}


def _cycle(number: int, cycle: Record, speculates: bool) -> dict[str, Any]:
    tree, accepted, seconds = cycle["tree"], cycle["accept_L"], cycle["seconds"]
    offered = max(0, sum(tree["valid"]) - 1)
    count = f"{accepted} of {offered} accepted" if speculates else "1 token"
    name = f"tree of cycle {number}: {count}"
    times = [f"{stage} {_milliseconds(seconds[stage])}" for stage in TIMED if stage in seconds]
    return {
        "number": number,
        "accepted": accepted,
        "count": count,
        "chips": [
            ("bonus" if place == accepted else "drafted", visible(cycle["choice_pieces"][row]))
            for place, row in enumerate(cycle["path"])
        ],
        "time": _milliseconds(sum(s for stage, s in seconds.items() if stage not in ("host", "checks"))),
        "drawing": draw(tree, cycle["choices"], cycle["choice_pieces"], cycle["path"], name),
        "note": " · ".join([f"n = {cycle['n']}", *times]),
    }
