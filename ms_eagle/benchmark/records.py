"""What one turn of a benchmark is kept as; the keys of a line of ``turns.jsonl``.

================== =========================================================================================
turn_name          file, question and turn, such as ``mt_bench:81/2``
source, question_id, category, turn
first              which engine answered first, ``teacher`` or ``speculative``
drafter            ``eagle3`` or ``synthetic`` (a scripted drafter: a measurement, not a result)
prompt_tokens, new_tokens, finish_reason
teacher            ``{prefill_s, decode_s, first_token_s, tokens_per_second, cycles}`` of the teacher alone
speculative        the same with speculation
speedup            decoding: tokens per second with speculation over those without
speedup_end_to_end the same with the reading of the prompt
accept_L           accepted draft tokens of every cycle, without the bonus token
group              the turns that were decoded together have one number
identical          whether both answers are the same tokens
difference         null, or where they part, see `difference`
answer             the teacher's text; ``speculative_answer`` beside it where the texts differ
token_ids          the teacher's; ``speculative_token_ids`` beside it where they differ
================== =========================================================================================

A turn that failed has ``turn_name, source, question_id, category, turn`` and
``error: {kind, message}``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ms_eagle.benchmark.pair import Answer
from ms_eagle.benchmark.plan import Question
from ms_eagle.benchmark.turn_log import Record

Margin = Callable[[Sequence[int]], float]


def identity(question: Question, turn: int) -> Record:
    """The keys that every record has; ``turn`` counts from 0."""
    return {
        "turn_name": question.name(turn),
        "source": question.source,
        "question_id": question.key.partition(":")[2],
        "category": question.category,
        "turn": turn + 1,
    }


def failed(question: Question, turn: int, error: Exception) -> Record:
    """The record of a turn that could not be measured."""
    message = " ".join(str(error).split())[:2000]
    return {**identity(question, turn), "error": {"kind": type(error).__name__, "message": message}}


def measured(
    question: Question,
    turn: int,
    prompts: tuple[Sequence[int], Sequence[int]],
    alone: Answer,
    speculative: Answer,
    first: str,
    group: int,
    margin: Margin,
) -> Record:
    """The record of a turn that both engines answered.

    Args:
        question, turn: which.
        prompts: token ids of the teacher's prompt and of the speculative engine's; they differ after answers
            that differed.
        alone, speculative: the answers.
        first: which engine answered first.
        group: a number that the turns decoded together share.
        margin: see ``Pair.margin``; called only where the answers differ.
    """
    one, other = alone.completion, speculative.completion
    identical = one.token_ids == other.token_ids
    record = {
        **identity(question, turn),
        "first": first,
        "drafter": other.drafter,
        "prompt_tokens": one.prompt_tokens,
        "new_tokens": len(one.token_ids),
        "finish_reason": one.finish_reason,
        "teacher": _times(alone),
        "speculative": _times(speculative),
        "speedup": _ratio(speculative.rate, alone.rate),
        "speedup_end_to_end": _ratio(_overall(speculative), _overall(alone)),
        "accept_L": list(other.accept_L or ()),
        "group": group,
        "identical": identical,
        "difference": None if identical else difference(prompts, one.token_ids, other.token_ids, margin),
        "answer": one.text,
        "token_ids": list(one.token_ids),
    }
    if other.text != one.text:
        record["speculative_answer"] = other.text
    if not identical:
        record["speculative_token_ids"] = list(other.token_ids)
    return record


def difference(
    prompts: tuple[Sequence[int], Sequence[int]],
    one: Sequence[int],
    other: Sequence[int],
    margin: Margin,
) -> dict[str, Any]:
    """Where two answers part.

    Returns:
        ``position`` (the answer's token, from 0), ``teacher_id`` and ``speculative_id`` (null past an
        answer's end), ``same_prompt``, and ``margin``: how far the teacher's best logit at that point lies
        above the second best. A margin near the rounding of the number format is a near tie, a large one a
        fault. It is null for answers to different prompts.
    """
    shorter = min(len(one), len(other))
    at = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    same = list(prompts[0]) == list(prompts[1])
    return {
        "position": at,
        "teacher_id": one[at] if at < len(one) else None,
        "speculative_id": other[at] if at < len(other) else None,
        "same_prompt": same,
        "margin": margin([*prompts[0], *one[:at]]) if same else None,
    }


def _times(answer: Answer) -> dict[str, Any]:
    return {
        "prefill_s": answer.prefill,
        "decode_s": answer.decode,
        "first_token_s": answer.completion.time_to_first_token,
        "tokens_per_second": answer.rate,
        "cycles": answer.completion.cycles,
    }


def _overall(answer: Answer) -> float | None:
    tokens = len(answer.completion.token_ids)
    return tokens / answer.total if tokens and answer.total > 0 else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
