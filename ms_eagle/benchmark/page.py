"""A run as one HTML page that needs nothing else: no network, no other file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from ms_eagle.benchmark import charts, paper
from ms_eagle.benchmark.figures import LABELS
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.pages import plot as svg_plot
from ms_eagle.pages.plot import text

_SYNTHETIC = (
    "Synthetic drafter: it proposes the teacher's own continuation with a set probability. These are figures "
    "of the machinery; acceptance and speed-up say nothing about any head."
)
_SHOWN = 40  # rows of a table of failures or differences


def page(summary: Mapping[str, Any], records: Sequence[Record], sections: Iterable[str] = ()) -> str:
    """The whole page; ``sections`` come after the plots of the run."""
    turns = [record for record in records if "error" not in record]
    manifest = summary["manifest"]
    drafter = {"eagle3": "EAGLE-3", "synthetic": "Synthetic drafter"}.get(manifest.get("drafter"), "No turns")
    title = f"{drafter} against {manifest['config']['model']['source']} alone"
    body = [
        f'<header><p class="kicker">ms_eagle benchmark</p><h1>{text(title)}</h1>',
        f'<p class="lead">{text(lead(summary))}</p>{notices(summary)}{facts(manifest)}</header><main>',
        cards(summary),
        '<section class="charts">' + "".join(charts.run_charts(summary, turns)) + "</section>"
        if turns
        else "",
        *sections,
        by_category(summary) if turns else "",
        beside_paper(summary) if turns else "",
        differences(summary),
        failures(summary),
        meaning(),
        "</main>",
    ]
    return document(title, "".join(body), summary["manifest"])


def document(title: str, body: str, manifest: Mapping[str, Any]) -> str:
    """A page around a body, with the manifest folded away at its end."""
    sheet = resources.files("ms_eagle.benchmark").joinpath("page.css").read_text(encoding="utf-8")
    whole = json.dumps(manifest, indent=2, ensure_ascii=False)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>\n{svg_plot.style()}{sheet}</style></head>\n<body>{body}"
        f"<details><summary>Whole manifest: configuration, prompts, versions, hashes</summary>"
        f"<pre>{text(whole)}</pre></details></body></html>\n"
    )


def lead(summary: Mapping[str, Any]) -> str:
    """The run in a sentence or two."""
    machine = summary["manifest"]["machine"]
    workers = summary["manifest"].get("workers", 1)
    shared = f", {workers} workers" if workers > 1 else ""
    identical = summary["tokens_match"]
    same = "" if identical is None else f" {_share(identical)} of the answers are the same tokens."
    return (
        f"{summary['turns']} turns, each answered by both, one after the other, on {machine['cores']} cores "
        f"of {machine['cpu']}{shared}.{same}"
    )


def notices(summary: Mapping[str, Any]) -> str:
    """What a reader must know before the figures."""
    found = []
    if summary["manifest"].get("drafter") == "synthetic":
        found.append(_SYNTHETIC)
    planned = summary.get("planned_turns", summary["turns"])
    undone = planned - summary["turns"] - summary["failed"]
    if undone:
        found.append(f"Unfinished: {undone} of {planned} turns are missing. The same command runs them.")
    for rank, count in summary.get("incomplete_ranks", {}).items():
        found.append(f"Worker {rank} ended before its time and left {count} turns undone.")
    return "".join(f'<p class="notice">{text(each)}</p>' for each in found)


def facts(manifest: Mapping[str, Any]) -> str:
    """What was measured on what, as a row of terms."""
    config = manifest["config"]
    tree = manifest.get("tree")
    load, git = manifest.get("load_average"), manifest.get("git")
    shown = {
        "begun": manifest.get("begun"),
        "device": manifest.get("device"),
        "kernels": manifest.get("kernels"),
        "dtype": config["model"]["dtype"],
        "mode": config["execution"]["mode"],
        "batch": config["execution"]["batch_size"],
        "tree": tree and f"budget {tree['budget']}, depth {tree['depth']}, branch {tree['branch']}",
        "most new tokens": config["generation"]["max_new_tokens"],
        "temperature": config["generation"]["temperature"],
        "load before": None if load is None else f"{load:g}",
        "load, compile, warm-up": _start(manifest),
        "memory": f"{manifest['machine']['memory_gb']:g} GB",
        "mindspore": manifest["versions"].get("mindspore"),
        "ms_eagle": manifest["versions"].get("ms_eagle"),
        "revision": git and f"{git['commit'][:12]}{', modified' if git['modified'] else ''}",
    }
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value in shown.items()
        if value is not None
    )
    return f'<dl class="facts">{cells}</dl>'


def _start(manifest: Mapping[str, Any]) -> str | None:
    """Seconds before the first turn, which are in no other figure."""
    found = [manifest.get(key) for key in ("load_s", "compile_s", "warm_up_s")]
    return None if None in found else ", ".join(f"{seconds:.1f} s" for seconds in found)


def cards(summary: Mapping[str, Any]) -> str:
    """The headline figures."""
    speed, accept = summary["speedup"], summary["accept_L"]
    overall = summary["speedup_end_to_end"]["mean"]
    shown = [
        ("mean speed-up", _times(speed["mean"]), f"{_times(overall)} with the prompt", "main"),
        ("slow tail, p1", _times(speed["p1"]), "99 % of turns are faster", "tail"),
        ("median", _times(speed["p50"]), f"p10 {_times(speed['p10'])}, p90 {_times(speed['p90'])}", ""),
        ("best turns, p99", _times(speed["p99"]), "1 % of turns are faster", ""),
        ("identical tokens", _share(summary["tokens_match"]), f"of {summary['turns']} turns", ""),
        ("accept_L", _number(accept["mean"]), f"tau {_number(summary['tau'])} with the bonus token", ""),
        (
            "tokens a second",
            _number(summary["speculative_tps"], 1),
            f"teacher alone {_number(summary['baseline_tps'], 1)}",
            "",
        ),
    ]
    cells = "".join(
        f'<div class="{kind}"><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>'
        for name, value, note, kind in shown
    )
    return f'<section><h2 class="hidden">Summary</h2><dl class="cards">{cells}</dl></section>'


def by_category(summary: Mapping[str, Any]) -> str:
    """A table of the categories."""
    rows = [
        (
            name,
            f"{found['turns']}",
            _times(found["speedup"]),
            _number(found["accept_L"]),
            f"{found['new_tokens']}",
            _share(found["tokens_match"]),
        )
        for name, found in summary["by_category"].items()
    ]
    heads = ("category", "turns", "speed-up", "accept_L", "new tokens", "identical")
    return _section("By category", table(heads, rows), charts.settings(summary))


def beside_paper(summary: Mapping[str, Any]) -> str:
    """The paper's figures and this run's."""
    rows = []
    for each in paper.FIGURES:
        ours = each.ours(summary)
        shown = "-" if ours is None else f"{_plain(ours)}{each.unit}"
        rows.append((each.name, f"{_plain(each.paper)}{each.unit}", shown, each.source))
    for name, keys, unit in paper.OURS_ALONE:
        ours = paper.Figure(name, 0, "", keys).ours(summary)
        rows.append((name, "not printed", "-" if ours is None else f"{_plain(ours)}{unit}", "this run"))
    heads = ("figure", "EAGLE-Pangu", "this run", "the paper's from")
    return _section("Beside the paper", table(heads, rows), paper.NOTE)


def differences(summary: Mapping[str, Any]) -> str:
    """Turns whose answers were not the same tokens."""
    found = summary["differences"]
    if not found:
        return ""
    rows = [
        (
            d["turn_name"],
            f"{d['position']}",
            f"{d['teacher_id']} / {d['speculative_id']}",
            "-" if d["margin"] is None else f"{d['margin']:.3g}",
        )
        for d in found[:_SHOWN]
    ]
    note = (
        f"{len(found)} of {summary['turns']}. The margin is the teacher's best logit above its second at the "
        "first difference: near zero is a tie that rounding decides, a large one is a fault."
    )
    heads = ("turn", "first difference at", "teacher / speculative id", "margin")
    return _section("Answers that differ", table(heads, rows), note, "error")


def failures(summary: Mapping[str, Any]) -> str:
    """Turns that could not be measured."""
    found = summary["failures"]
    if not found:
        return ""
    rows = [(f["turn_name"], f["kind"], f["message"]) for f in found[:_SHOWN]]
    note = f"{len(found)} turns are in no figure. The same command tries them again."
    return _section("Turns that failed", table(("turn", "kind", "message"), rows), note, "error")


def meaning() -> str:
    """What the figures are."""
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(said)}</dd>" for name, said in LABELS.items())
    return f'<section><h2>What the figures are</h2><dl class="labels">{rows}</dl></section>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows."""
    top = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    lines = "".join(
        f'<tr><th scope="row">{text(first)}</th>'
        + "".join(f"<td>{text(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _section(title: str, content: str, note: str, kind: str = "") -> str:
    return (
        f'<section class="{kind}"><h2>{text(title)}</h2><p class="meta">{text(note)}</p>{content}</section>'
    )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "-" if value is None else "100 %" if value == 1 else f"{100 * value:.1f} %"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _plain(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
