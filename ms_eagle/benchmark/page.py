"""A run as one HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from ms_eagle.benchmark import charts, paper
from ms_eagle.benchmark.figures import LABELS
from ms_eagle.benchmark.text import number, share, times
from ms_eagle.benchmark.turn_log import Record
from ms_eagle.drafters import registry
from ms_eagle.pages.parts import Card, Section, facts
from ms_eagle.pages.template import render

_SHOWN = 40  # rows of a table of failures or differences


def page(summary: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The whole page."""
    turns = [record for record in records if "error" not in record]
    manifest = summary["manifest"]
    drafter = registry.label(manifest.get("drafter"), "No turns")
    sections = [differences(summary), failures(summary), Section("What the figures are", terms=LABELS)]
    if turns:
        plots = Section("Plots", figures=charts.run_charts(summary, turns))
        sections = [plots, by_category(summary), beside_paper(summary), *sections]
    return render(
        "report.html",
        kicker="ms_eagle benchmark",
        title=f"{drafter} against {manifest['config']['model']['source']} alone",
        lead=lead(summary),
        notices=notices(summary),
        facts=_facts(manifest),
        manifest=manifest,
        cards=cards(summary),
        sections=sections,
    )


def lead(summary: Mapping[str, Any]) -> str:
    """The run in a sentence or two."""
    machine = summary["manifest"]["machine"]
    workers = summary["manifest"].get("workers", 1)
    shared = f", {workers} workers" if workers > 1 else ""
    identical = summary["tokens_match"]
    same = "" if identical is None else f" {share(identical)} of the answers are the same tokens."
    return (
        f"{summary['turns']} turns, each answered by both, one after the other, on {machine['cores']} cores "
        f"of {machine['cpu']}{shared}.{same}"
    )


def notices(summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the figures."""
    notices = registry.notices(summary["manifest"].get("drafter"))
    planned = summary.get("planned_turns", summary["turns"])
    undone = planned - summary["turns"] - summary["failed"]
    if undone:
        notices.append(f"Unfinished: {undone} of {planned} turns are missing. The same command runs them.")
    for rank, count in summary.get("incomplete_ranks", {}).items():
        notices.append(f"Worker {rank} ended before its time and left {count} turns undone.")
    return notices


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on what."""
    config, load = manifest["config"], manifest.get("load_average")
    start = [manifest.get(key) for key in ("load_s", "compile_s", "warm_up_s")]  # are in no other figure
    return {
        "begun": manifest.get("begun"),
        "mode": config["execution"]["mode"],
        "batch": config["execution"]["batch_size"],
        "most new tokens": config["generation"]["max_new_tokens"],
        "temperature": config["generation"]["temperature"],
        "load before": None if load is None else f"{load:g}",
        "load, compile, warm-up": None if None in start else ", ".join(f"{s:.1f} s" for s in start),
        "memory": f"{manifest['machine']['memory_gb']:g} GB",
        **facts(manifest),
    }


def cards(summary: Mapping[str, Any]) -> list[Card]:
    """The headline figures."""
    speed, accept = summary["speedup"], summary["accept_L"]
    overall = summary["speedup_end_to_end"]["mean"]
    return [
        Card("mean speed-up", times(speed["mean"]), f"{times(overall)} with the prompt", "main"),
        Card("slow tail, p1", times(speed["p1"]), "99 % of turns are faster", "tail"),
        Card("median", times(speed["p50"]), f"p10 {times(speed['p10'])}, p90 {times(speed['p90'])}"),
        Card("best turns, p99", times(speed["p99"]), "1 % of turns are faster"),
        Card("identical tokens", share(summary["tokens_match"]), f"of {summary['turns']} turns"),
        Card("accept_L", number(accept["mean"]), f"tau {number(summary['tau'])} with the bonus token"),
        Card(
            "tokens a second",
            number(summary["speculative_tps"], 1),
            f"teacher alone {number(summary['baseline_tps'], 1)}",
        ),
    ]


def by_category(summary: Mapping[str, Any]) -> Section:
    """A table of the categories."""
    rows = [
        (
            name,
            group["turns"],
            times(group["speedup"]),
            number(group["accept_L"]),
            group["new_tokens"],
            share(group["tokens_match"]),
        )
        for name, group in summary["by_category"].items()
    ]
    heads = ("category", "turns", "speed-up", "accept_L", "new tokens", "identical")
    return Section("By category", charts.settings(summary), heads, rows)


def beside_paper(summary: Mapping[str, Any]) -> Section:
    """The paper's figures and this run's."""

    def shown(value: float | None, unit: str) -> str:
        return "-" if value is None else f"{value:.2f}".rstrip("0").rstrip(".") + unit

    rows = [
        (each.name, shown(each.paper, each.unit), shown(each.ours(summary), each.unit), each.source)
        for each in paper.FIGURES
    ]
    for name, keys, unit in paper.OURS_ALONE:
        ours = paper.Figure(name, 0, "", keys).ours(summary)
        rows.append((name, "not printed", shown(ours, unit), "this run"))
    heads = ("figure", "EAGLE-Pangu", "this run", "the paper's from")
    return Section("Beside the paper", paper.NOTE, heads, rows)


def differences(summary: Mapping[str, Any]) -> Section:
    """Turns whose answers were not the same tokens."""
    rows = [
        (
            each["turn_name"],
            each["position"],
            f"{each['teacher_id']} / {each['speculative_id']}",
            "-" if each["margin"] is None else f"{each['margin']:.3g}",
        )
        for each in summary["differences"][:_SHOWN]
    ]
    note = (
        f"{len(summary['differences'])} of {summary['turns']}. The margin is the teacher's best logit above "
        "its second at the first difference: near zero is a tie that rounding decides, a large one is a "
        "fault."
    )
    heads = ("turn", "first difference at", "teacher / speculative id", "margin")
    return Section("Answers that differ", note, heads, rows, kind="error")


def failures(summary: Mapping[str, Any]) -> Section:
    """Turns that could not be measured."""
    rows = [(each["turn_name"], each["kind"], each["message"]) for each in summary["failures"][:_SHOWN]]
    note = f"{len(summary['failures'])} turns are in no figure. The same command tries them again."
    return Section("Turns that failed", note, ("turn", "kind", "message"), rows, kind="error")
