"""The outcome of a comparison of peers: figures, a table, and the JSON form of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ms_eagle.benchmark.peers.catalogue import TEACHER
from ms_eagle.benchmark.peers.timing import Difference, Result
from ms_eagle.benchmark.text import number
from ms_eagle.pages.columns import aligned
from ms_eagle.system import machine

NEAR_TIE = 1e-3  # logits closer than this are told apart by rounding alone, in float32


def record(results: Sequence[Result], common: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, as JSON values; seconds and bytes throughout.

    Args:
        results: of all peers.
        common: ``model, threads, new_tokens, rounds``; ``prompts``, name and tokens of each; ``load_before``
            and ``load_after``, load averages over 1, 5 and 15 minutes; ``elsewhere``, the share of all cores
            that other processes used during the run, or None.
    """
    teacher = next((result for result in results if result.peer.name == TEACHER and not result.failure), None)
    elsewhere = common["elsewhere"]
    idle = None if elsewhere is None else elsewhere <= machine.IDLE
    return {**common, "idle": idle, "peers": [_peer(result, teacher) for result in results]}


def _peer(result: Result, teacher: Result | None) -> dict[str, Any]:
    status = "ok" if result.failure is None else "missing" if result.missing else "failed"
    outcome: dict[str, Any] = {"name": result.peer.name, "status": status, "reason": result.failure}
    if result.failure is not None:
        return outcome
    rates = [_median(timing.rate for timing in rounds) for rounds in result.timings]
    return outcome | {
        "facts": result.facts,
        "tokens_per_second": _median(rates),
        "ratio": None if teacher is None else ratio(result, teacher),
        "first_token_seconds": _median(_median(t.first for t in rounds) for rounds in result.timings),
        "load_seconds": result.load_seconds,
        "peak_bytes": result.peak_bytes,
        "differences": [asdict(each) for each in result.differences],
        "prompts": [
            {
                "tokens_per_second": rate,
                "first_token_seconds": _median(timing.first for timing in rounds),
                "rounds": [{"first": t.first, "burst": t.burst, "total": t.total} for t in rounds],
                "token_ids": list(rounds[0].token_ids),
            }
            for rate, rounds in zip(rates, result.timings, strict=True)
        ],
    }


def ratio(result: Result, teacher: Result) -> dict[str, float] | None:
    """Tokens per second over the teacher's on the same prompt in the same round: median and 10 to 90 percent.

    None where no answer took longer than its first arrival.
    """
    pairs = [
        (own.rate, base.rate)
        for owns, bases in zip(result.timings, teacher.timings, strict=True)
        for own, base in zip(owns, bases, strict=True)
    ]
    ratios = [own / base for own, base in pairs if own is not None and base is not None]
    if not ratios:
        return None
    low, middle, high = (float(value) for value in np.quantile(ratios, (0.1, 0.5, 0.9)))
    return {"median": middle, "p10": low, "p90": high}


def lines(report: dict[str, Any]) -> list[str]:
    """The report of `record` as text."""
    sizes = [prompt["tokens"] for prompt in report["prompts"]]
    shared = report["elsewhere"]
    rounds = f"{report['rounds']} round{'s' if report['rounds'] > 1 else ''}"
    lines = [
        f"{report['model']}, float32, {report['threads']} threads; {len(sizes)} prompts of {min(sizes)} to "
        f"{max(sizes)} tokens, {report['new_tokens']} new tokens, {rounds}",
        f"load average {report['load_before'][0]:.2f} before, {report['load_after'][0]:.2f} after; "
        + ("" if shared is None else f"others used {100 * shared:.0f} % of the CPU"),
    ]
    if report["idle"] is False:
        lines.append("warning: the machine was not idle: these figures cannot be relied on")
    lines += ["", *aligned([_HEADS, *(_row(peer, len(sizes)) for peer in report["peers"])])]
    finished = [peer for peer in report["peers"] if peer["status"] == "ok"]
    if not finished:
        return lines
    facts = [", ".join(f"{name} {value}" for name, value in peer["facts"].items()) for peer in finished]
    lines += [
        "",
        *aligned([(peer["name"], fact) for peer, fact in zip(finished, facts, strict=True)], left=2),
    ]
    differences = [
        _in_words(peer["name"], Difference(**each)) for peer in finished for each in peer["differences"]
    ]
    return [
        *lines,
        *(["", *differences] if differences else []),
        "",
        *_by_prompt(report["prompts"], finished),
    ]


_HEADS = ("peer", "tokens/s", "ratio", "p10-p90", "first ms", "load s", "peak MB", "same tokens")


def _row(peer: dict[str, Any], prompts: int) -> tuple[str, ...]:
    if peer["status"] != "ok":
        return peer["name"], f"{peer['status']}: {peer['reason']}"
    ratio, peak = peer["ratio"], peer["peak_bytes"]
    return (
        peer["name"],
        number(peer["tokens_per_second"], 1),
        "-" if ratio is None else f"{ratio['median']:.2f}",
        "-" if ratio is None else f"{ratio['p10']:.2f}-{ratio['p90']:.2f}",
        f"{1e3 * peer['first_token_seconds']:.1f}",
        f"{peer['load_seconds']:.1f}",
        number(None if peak is None else peak / 1e6, 0),
        f"{prompts - len(peer['differences'])} of {prompts}",
    )


def _in_words(name: str, difference: Difference) -> str:
    where = (
        f"{name}: prompt {difference.prompt + 1} differs from token {difference.token + 1} on: id "
        f"{difference.found}, not {difference.reference}"
    )
    if difference.margin is None:
        return where
    kind = "a tie" if difference.margin < NEAR_TIE else "NOT a tie"
    return f"{where}; transformers' logits of the two are {difference.margin:.1e} apart: {kind}"


def _by_prompt(prompts: Sequence[dict[str, Any]], finished: Sequence[dict[str, Any]]) -> list[str]:
    """Medians of tokens/s, a row for each prompt."""
    rows = [
        (
            f"{prompt['name']} ({prompt['tokens']} tokens)",
            *(number(peer["prompts"][index]["tokens_per_second"], 1) for peer in finished),
        )
        for index, prompt in enumerate(prompts)
    ]
    return aligned([("tokens/s by prompt", *(peer["name"] for peer in finished)), *rows])


def _median(values: Iterable[float | None]) -> float | None:
    """Median of the values that are there."""
    present = [value for value in values if value is not None]
    return float(np.median(present)) if present else None
