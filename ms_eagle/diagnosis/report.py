"""What a check of a head found, as JSON and as text."""

from dataclasses import dataclass
from typing import Any

from ms_eagle.diagnosis.agreement import Agreement
from ms_eagle.diagnosis.verdict import Suspect, Verdict, figure
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.pages.columns import aligned


@dataclass(frozen=True)
class HeadReport:
    """Everything that a check found; ``record`` and ``lines`` present it.

    Attributes:
        source: where the head came from.
        head: as loaded.
        taps_from: how its taps are known.
        text: what was read: the teacher's answers, or a file.
        branch: k of top-k.
        agreement: of the head as it is.
        suspects: other readings that were tried.
        verdict: the conclusion.
    """

    source: str
    head: Head
    taps_from: str
    text: str
    branch: int
    agreement: Agreement
    suspects: tuple[Suspect, ...]
    verdict: Verdict


def record(report: HeadReport) -> dict[str, Any]:
    """The report as JSON values; the fields are listed in docs/check_head.md."""
    config, agreement = report.head.config, report.agreement
    return {
        "source": report.source,
        "format": config.format,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "taps": list(config.taps),
        "taps_from": report.taps_from,
        "rope": {
            "theta": config.rope.theta,
            "scaling": config.rope.scaling,
            "parameters": dict(config.rope.parameters),
        },
        "draft_vocab_size": config.draft_vocab_size,
        "vocab_size": config.vocab_size,
        "coverage": agreement.coverage,
        "notes": [*config.notes, *config.doubts],
        "text": report.text,
        "branch": report.branch,
        "depths": [
            {"depth": d + 1, "positions": count, "top1": agreement.top1[d], "topk": agreement.topk[d]}
            for d, count in enumerate(agreement.positions)
        ],
        "accept_L": {"chain": agreement.accept_chain, "branch": agreement.accept_branch},
        "suspects": [
            {
                "name": suspect.name,
                "advice": suspect.advice,
                "top1": suspect.agreement.top1[0],
                "accept_L": suspect.agreement.accept_chain,
            }
            for suspect in report.suspects
        ],
        "verdict": {"code": report.verdict.code, "text": report.verdict.text},
    }


def lines(report: HeadReport) -> list[str]:
    """The report for people, one line an entry."""
    config, agreement = report.head.config, report.agreement
    rope, layers = config.rope, f"{config.num_layers} layer{'s' if config.num_layers > 1 else ''}"
    depths = [
        (str(d + 1), str(count), figure(agreement.top1[d]), figure(agreement.topk[d]))
        for d, count in enumerate(agreement.positions)
    ]
    chain = agreement.accept_chain
    tau = None if chain is None else chain + 1
    return [
        f"head     {report.source}",
        f"format   {config.format}, {layers} of width {config.hidden_size}",
        f"taps     inputs of blocks {', '.join(map(str, config.taps))}, from {report.taps_from}",
        f"rope     theta {rope.theta:g}, {rope.scaling} scaling",
        f"words    {config.draft_vocab_size} of {config.vocab_size} tokens, among them "
        f"{100 * agreement.coverage:.1f} % of the teacher's choices",
        *(f"note     {note}" for note in (*config.notes, *config.doubts)),
        f"text     {report.text}",
        "",
        *aligned([("depth", "positions", "top-1", f"top-{report.branch}"), *depths], left=0),
        "",
        f"chain    accept_L {figure(chain)} (tau {figure(tau)}) with one token a depth; "
        f"a tree gets at most {figure(agreement.accept_branch)}",
        *(
            f"tried    {suspect.name}: top-1 {figure(suspect.agreement.top1[0])}, accept_L "
            f"{figure(suspect.agreement.accept_chain)}"
            for suspect in report.suspects
        ),
        f"verdict  {report.verdict.code}: {report.verdict.text}",
    ]
