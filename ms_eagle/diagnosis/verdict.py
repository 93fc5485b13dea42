"""What a head's agreement with its teacher says about the head, and which suspect is to blame."""

from collections.abc import Sequence
from dataclasses import dataclass

from ms_eagle.diagnosis.agreement import Agreement

# Below these the suspects are tried. Trained heads reach 0.6 to 0.8 at depth 1 on their teacher's answers,
# and keep most of it from one depth to the next.
_LOW_TOP1, _LOW_NEXT = 0.5, 0.6
# What a suspect must improve to be named: by so much, and by this factor.
_GAIN_TOP1, _GAIN_ACCEPT, _GAIN_FACTOR = 0.05, 0.2, 1.2
_FEW_POSITIONS, _LOW_COVERAGE = 50, 0.9
_RELABELLED, _RELABELLED_FACTOR = 0.2, 3.0


@dataclass(frozen=True)
class Suspect:
    """Another reading of the head and how well it does."""

    name: str
    advice: str
    agreement: Agreement


@dataclass(frozen=True)
class Verdict:
    """The conclusion: ``good``, ``suspect`` (a cause was found), ``low`` or ``not finite``, and why."""

    code: str
    text: str


def judge(agreement: Agreement, tried: Sequence[Suspect], dtype: str) -> Verdict:
    """The verdict on a head's agreement, given what other readings of it achieve."""
    if not agreement.finite:
        return Verdict(
            "not finite",
            f"the head's logits are NaN or infinite in model.dtype={dtype}: use float32 or bfloat16, or "
            "check its weights.",
        )
    top1 = agreement.top1[0] or 0.0
    few = agreement.positions[0] < _FEW_POSITIONS
    caution = f" Only {agreement.positions[0]} positions were measured." if few else ""
    better = [suspect for suspect in tried if _is_better(suspect.agreement, agreement)]
    if better:
        best = max(better, key=lambda s: (s.agreement.accept_chain or 0.0, s.agreement.top1[0] or 0.0))
        return Verdict(
            "suspect",
            f"with {best.name} top-1 would be {figure(best.agreement.top1[0])} instead of {figure(top1)} and "
            f"a chain's accept_L {figure(best.agreement.accept_chain)} instead of "
            f"{figure(agreement.accept_chain)}: {best.advice}.{caution}",
        )
    if agreement.relabelled >= max(_RELABELLED, _RELABELLED_FACTOR * top1) and not few:
        return Verdict(
            "suspect",
            f"with another vocabulary map (d2t) top-1 would be {figure(agreement.relabelled)} or more "
            f"instead of {figure(top1)}: the head's guesses go with the teacher's choices, but name other "
            "tokens; d2t is damaged or another head's.",
        )
    if not looks_low(agreement):
        return Verdict("good", f"the head fits its teacher.{_about_coverage(agreement)}{caution}")
    if top1 >= _LOW_TOP1:
        return Verdict(
            "low",
            f"top-1 falls from {figure(top1)} to {figure(agreement.top1[1])} at depth 2 and no usual "
            "suspect explains it: was the head trained on its own features?"
            f"{_about_coverage(agreement)}{caution}",
        )
    return Verdict(
        "low",
        "agreement is low and no usual suspect explains it: is this the head of this very teacher, trained "
        f"long enough and with its chat template?{_about_coverage(agreement)}{caution}",
    )


def looks_low(agreement: Agreement) -> bool:
    """Whether other readings of the head are worth a try."""
    top1 = [value for value in agreement.top1 if value is not None]
    falls = len(top1) > 1 and top1[1] < _LOW_NEXT * top1[0]
    return agreement.finite and (not top1 or top1[0] < _LOW_TOP1 or falls)


def _is_better(other: Agreement, own: Agreement) -> bool:
    def gains(new: float | None, old: float | None, least: float) -> bool:
        new, old = new or 0.0, old or 0.0
        return new >= old + least and new >= _GAIN_FACTOR * old

    return other.finite and (
        gains(other.top1[0], own.top1[0], _GAIN_TOP1)
        or gains(other.accept_chain, own.accept_chain, _GAIN_ACCEPT)
    )


def _about_coverage(agreement: Agreement) -> str:
    if agreement.coverage >= _LOW_COVERAGE:
        return ""
    share = f"{100 * (1 - agreement.coverage):.0f} %"
    return f" {share} of the teacher's choices are outside the draft vocabulary and can never be drafted."


def figure(value: float | None) -> str:
    """A share or a mean with two digits; ``-`` where there is none."""
    return "-" if value is None else f"{value:.2f}"
