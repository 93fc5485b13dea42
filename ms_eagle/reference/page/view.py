"""A trace as one HTML page that needs nothing else: no network, no other file."""

import json
from collections.abc import Iterable
from importlib import resources

from ms_eagle.reference.page.figures import TIMED, Figures, figures
from ms_eagle.reference.page.tree import draw, escape, percent, visible
from ms_eagle.reference.trace import Record, Trace, Turn

_LEGEND = (
    ("drafted", "drafted and accepted"),
    ("bonus", "the teacher's own token"),
    ("prompt", "prompt"),
    ("dropped", "after the end, dropped"),
)
_STAGE_NOTES = {
    "draft": "grow the candidates with the drafter",
    "tensorize": "choose the best and lay them out as rows",
    "verify": "one teacher forward over all rows",
    "accept": "follow the teacher's choices through the tree",
    "commit": "move accepted rows to their place",
    "extend": "give the drafter the accepted tokens",
    "host": "between two cycles: text, streaming, the trace",
    "checks": "invariants, which performance mode does not run",
}


def page(trace: Trace) -> str:
    """The whole page."""
    numbers = figures(trace)
    title = f"{_drafter(trace.manifest)} on {_model(trace.manifest)}"
    turns = [_turn(trace, index, turn) for index, turn in enumerate(trace.turns, 1)]
    body = [
        f"<header><p class=kicker>ms_eagle trace</p><h1>{escape(title)}</h1>{_notices(trace)}",
        f"{_run(trace.manifest)}</header><main>",
        *(_error(error) for error in trace.errors),
        _summary(trace, numbers),
        _contents(trace),
        *turns,
        "</main>",
        "<footer>Keys: <kbd>j</kbd> <kbd>k</kbd> next and previous cycle, <kbd>o</kbd> open or close it, ",
        "<kbd>e</kbd> open all, <kbd>c</kbd> close all. A token of the text leads to its cycle.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Trace: {escape(title)}</title><style>\n{_asset('css')}</style></head>\n<body>"
        f"{chr(10).join(body)}\n<script>\n{_asset('js')}</script></body></html>\n"
    )


def _asset(extension: str) -> str:
    return resources.files(__package__).joinpath(f"view.{extension}").read_text(encoding="utf-8")


def _drafter(manifest: Record) -> str:
    kinds = {"none": "Teacher alone", "eagle3": "EAGLE-3", "synthetic": "Synthetic drafter"}
    return kinds.get(manifest.get("drafter"), "Unfinished run")


def _model(manifest: Record) -> str:
    return str((manifest.get("weights") or {}).get("model", {}).get("origin") or _source(manifest))


def _source(manifest: Record) -> str:
    return str(manifest.get("config", {}).get("model", {}).get("source", "?"))


def _notices(trace: Trace) -> str:
    notices = []
    if trace.manifest.get("drafter") == "synthetic":
        notices.append(
            "Synthetic drafter: it proposes the teacher's own continuation with a set probability. Acceptance"
            " here says nothing about any head."
        )
    if trace.torn:
        notices.append("The trace breaks off inside a line: its process was ended while it wrote.")
    elif any(turn.finish is None for turn in trace.turns) and not trace.errors:
        notices.append("The trace ends before its last answer does.")
    return "".join(f'<p class="notice">{escape(notice)}</p>' for notice in notices)


def _run(manifest: Record) -> str:
    """The manifest: what matters in words, all of it folded away."""
    tree, git = manifest.get("tree"), manifest.get("git")
    shape = f"budget {tree['budget']}, depth {tree['depth']}, branch {tree['branch']}" if tree else None
    commit = git and f"{git['commit'][:12]}{', modified' if git['modified'] else ''}"
    versions = manifest.get("versions", {})
    facts = {
        "made": manifest.get("created"),
        "device": manifest.get("device"),
        "kernels": manifest.get("kernels"),
        "dtype": manifest.get("config", {}).get("model", {}).get("dtype"),
        "batch": manifest.get("batch"),
        "tree": shape,
        "ms_eagle": versions.get("ms_eagle"),
        "mindspore": versions.get("mindspore"),
        "revision": commit,
    }
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts.items()
        if value is not None
    )
    whole = json.dumps({k: v for k, v in manifest.items() if k != "record"}, indent=2, ensure_ascii=False)
    return (
        f'<dl class="facts">{cells}</dl>'
        "<details><summary>Whole manifest: configuration, versions, hashes</summary>"
        f"<pre>{escape(whole)}</pre></details>"
    )


def _error(error: Record) -> str:
    """What went wrong, and the trees of the rows as far as they were known."""
    stage = f", in stage {error['stage']}" if error.get("stage") else ""
    parts = [
        f'<section class="error"><h2>{escape(str(error.get("error")))}{escape(stage)}</h2>',
        f"<p>{escape(str(error.get('message')))}</p>",
    ]
    for row in error.get("rows", []):
        name = f"{row['prompt']}, turn {row['turn']}"
        parts.append(f"<h3>{escape(name)}: {len(row['token_ids'])} tokens, n = {row['n']}</h3>")
        if row.get("tree"):
            parts.append(_scrolled(draw(row["tree"], [], [], [], f"the tree of {name}")))
    return "".join(parts) + "</section>"


def _summary(trace: Trace, numbers: Figures) -> str:
    cards = [
        ("answers", f"{len(trace.turns)}"),
        ("tokens", f"{numbers.tokens}"),
        ("cycles", f"{numbers.cycles}"),
    ]
    speculates = trace.manifest.get("drafter") not in (None, "none")
    if numbers.cycles and speculates:
        mean = numbers.mean_accepted
        cards.append(("accept_L, mean", f"{mean:.2f}"))
        cards.append(("tau = accept_L + 1", f"{mean + 1:.2f}"))
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards)
    charts = [_stages(numbers)] if numbers.cycles else []
    if numbers.cycles and speculates:
        charts = [_by_depth(numbers), _histogram(numbers), *charts]
    return f'<section id="summary"><h2 class="hidden">Summary</h2><dl class="cards">{shown}</dl>' + (
        f'<div class="charts">{"".join(charts)}</div></section>'
    )


def _bars(caption: str, note: str, rows: Iterable[tuple[str, float, str, str]], kind: str) -> str:
    """A bar chart that is a table: rows of label, share of the widest, figure and explanation."""
    lines = "".join(
        f'<tr title="{escape(why)}"><th scope="row">{escape(label)}</th><td class="bar">'
        f'<span class="{kind}" style="width:{100 * share:.1f}%"></span></td><td>{escape(figure)}</td></tr>'
        for label, share, figure, why in rows
    )
    return (
        f"<figure><figcaption>{escape(caption)}<small>{escape(note)}</small></figcaption>"
        f"<table>{lines}</table></figure>"
    )


def _by_depth(numbers: Figures) -> str:
    rows = []
    for depth in range(1, len(numbers.accepted)):
        reached, before = numbers.reached(depth), numbers.reached(depth - 1)
        share = reached / numbers.cycles
        given = f"; {reached / before:.0%} of the {before} that got to depth {depth - 1}" if before else ""
        rows.append((f"depth {depth}", share, percent(share), f"{reached} of {numbers.cycles} cycles{given}"))
    return _bars("Acceptance by depth", "cycles that accepted a draft token this deep", rows, "drafted")


def _histogram(numbers: Figures) -> str:
    most = max(numbers.accepted)
    rows = [
        (f"{a}", count / most, f"{count}", f"{count} cycles accepted {a} draft tokens")
        for a, count in enumerate(numbers.accepted)
    ]
    return _bars("accept_L", "cycles by accepted draft tokens, bonus not counted", rows, "drafted")


def _stages(numbers: Figures) -> str:
    most = max([1e-9, *numbers.seconds.values()])
    rows = [
        (stage, mean / most, _milliseconds(mean), _STAGE_NOTES[stage])
        for stage, mean in numbers.seconds.items()
    ]
    note = "mean per cycle, stage by stage with host reads between: not the speed of performance mode"
    return _bars("Time by stage", note, rows, "time")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def _contents(trace: Trace) -> str:
    if len(trace.turns) < 2:
        return ""
    links = "".join(
        f'<li><a href="#t{index}">{escape(_name(turn))}</a></li>' for index, turn in enumerate(trace.turns, 1)
    )
    return f'<nav aria-label="Answers"><ol>{links}</ol></nav>'


def _name(turn: Turn) -> str:
    return f"{turn.prefill['prompt']}, turn {turn.prefill['turn']}"


def _turn(trace: Trace, index: int, turn: Turn) -> str:
    finish = turn.finish
    figures_ = [f"{len(turn.prefill['token_ids'])} prompt tokens"]
    if turn.prefill["reused"]:
        figures_.append(f"{turn.prefill['reused']} of them reused")
    if finish:
        figures_ += [f"{finish['new_tokens']} new tokens", f"ended by {finish['finish_reason']}"]
        if finish["checks"]:
            worst = max(finish["checks"]["cache_difference"].values(), default=0.0)
            figures_.append(f"equal to the teacher alone, caches within {worst:.1g} of a fresh run")
            if finish["checks"]["ties"]:
                figures_.append(f"{len(finish['checks']['ties'])} near ties")
    else:
        figures_.append("unfinished")
    legend = "".join(f'<li><span class="tok {kind}">{name}</span></li>' for kind, name in _LEGEND)
    cycles = "".join(_cycle(trace, index, number, c) for number, c in enumerate(turn.cycles, 1))
    return (
        f'<section class="turn" id="t{index}"><h2>{escape(_name(turn))}</h2>'
        f'<p class="meta">{escape(" · ".join(figures_))}</p><ul class="legend">{legend}</ul>'
        f'<div class="text"><span class="tok prompt">{escape(turn.prefill["text"])}</span>'
        f'{_answer(index, turn)}</div><h3>Cycles</h3><div class="cycles">{cycles}</div></section>'
    )


def _answer(index: int, turn: Turn) -> str:
    """The emitted tokens, each a link to its cycle, coloured by how it came to be."""
    left = len(turn.finish["token_ids"]) if turn.finish else None
    parts = []
    for number, cycle in enumerate(turn.cycles, 1):
        for place, piece in enumerate(cycle["pieces"]):
            kind = "bonus" if place == len(cycle["pieces"]) - 1 else "drafted"
            why = "the teacher's own token" if kind == "bonus" else f"drafted at depth {place + 1}"
            if left is not None:
                kind = kind if left > 0 else f"{kind} dropped"
                left -= 1
            own = cycle["choice_pieces"][cycle["path"][place]]
            shown = escape(piece) if piece else f"<small>{escape(visible(own))}</small>"
            title = f"cycle {number}: {why}, token {cycle['emitted'][place]}"
            parts.append(
                f'<a class="tok {kind}" href="#t{index}c{number}" title="{escape(title)}">{shown}</a>'
            )
    return "".join(parts)


def _cycle(trace: Trace, index: int, number: int, cycle: Record) -> str:
    tree, accepted = cycle["tree"], cycle["accept_L"]
    offered = sum(tree["valid"]) - 1 if any(tree["valid"]) else 0
    own = [cycle["choice_pieces"][row] for row in cycle["path"]]
    chips = "".join(
        f'<span class="tok {"bonus" if place == accepted else "drafted"}">{escape(visible(piece))}</span>'
        for place, piece in enumerate(own)
    )
    spent = sum(seconds for stage, seconds in cycle["seconds"].items() if stage not in ("host", "checks"))
    count = f"{accepted} of {offered} accepted" if trace.manifest.get("drafter") != "none" else "1 token"
    name = f"tree of cycle {number}: {count}"
    drawing = draw(tree, cycle["choices"], cycle["choice_pieces"], cycle["path"], name)
    times = " · ".join(
        f"{stage} {_milliseconds(cycle['seconds'][stage])}" for stage in TIMED if stage in cycle["seconds"]
    )
    return (
        f'<details class="cycle" id="t{index}c{number}"{" open" if number == 1 else ""}><summary>'
        f'<span class="number">{number}</span><span class="count a{min(accepted, 9)}">{count}</span>'
        f'<span class="chips">{chips}</span><span class="ms">{_milliseconds(spent)}</span></summary>'
        f'{_scrolled(drawing)}<p class="meta">n = {cycle["n"]} · {escape(times)}</p></details>'
    )


def _scrolled(drawing: str) -> str:
    return f'<div class="scroll" tabindex="0">{drawing}</div>'
