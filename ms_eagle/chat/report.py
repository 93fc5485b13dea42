"""How a finished answer is told: streamed text, a line of figures, or one JSON object."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ms_eagle.drafters.registry import NONE, label, notices
from ms_eagle.engine.requests import Completion
from ms_eagle.errors import printable


def figures(completion: Completion, *, start: bool = True) -> str:
    """One line: tokens, tokens per second, time to first token, what the prompt and, with ``start``, the
    start-up took.

    Seconds are wall time; tokens per second are new tokens over decode time, so the prompt does not count.
    A synthetic drafter is named first: neither its acceptance nor its speed is that of any head.
    """
    seconds = completion.seconds
    rate, first = completion.tokens_per_second, completion.time_to_first_token
    reused = f" ({completion.reused_tokens} reused)" if completion.reused_tokens else ""
    tokens = "token" if completion.new_tokens == 1 else "tokens"
    parts = [
        *([label(completion.drafter, NONE).lower()] if notices(completion.drafter) else []),
        f"{completion.new_tokens} {tokens} ({completion.finish_reason})",
        f"{'-' if rate is None else format(rate, '.1f')} tokens/s",
        f"first token {'-' if first is None else format(first, '.2f') + ' s'}",
        f"prompt {completion.prompt_tokens}{reused}",
    ]
    if completion.accept_L:
        accepted = sum(completion.accept_L) / len(completion.accept_L)
        parts.insert(len(parts) - 1, f"accept_L {accepted:.2f} (tau {accepted + 1:.2f})")
    if start:
        parts += [f"load {seconds.load:.1f} s", f"compile {seconds.compile:.1f} s"]
    return f"[{' | '.join(parts)}]"


def record(completion: Completion) -> dict[str, Any]:
    """The JSON form of an answer, exactly the fields that scripts rely on (see ``tools/infer.py --help``).

    ``finish_reason`` is ``stop``, ``length`` or, where asked for, ``loop``: an interrupted answer was cut
    short and counts as ``length``.
    ``accept_L`` lists the accepted draft tokens of every cycle and is null without a drafter.
    """
    seconds = completion.seconds
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "prompt_tokens": completion.prompt_tokens,
        "new_tokens": completion.new_tokens,
        "finish_reason": "length" if completion.finish_reason == "interrupted" else completion.finish_reason,
        "drafter": completion.drafter,
        "kernels": completion.kernels,
        "mode": completion.mode,
        "cycles": completion.cycles,
        "accept_L": None if completion.accept_L is None else list(completion.accept_L),
        "tokens_per_second": completion.tokens_per_second,
        "seconds": {
            "load": seconds.load,
            "compile": seconds.compile,
            "prefill": seconds.prefill,
            "decode": seconds.decode,
        },
    }


@dataclass(frozen=True)
class Asked:
    """Which turn is answered; ``turn`` counts from 1, the others are None where no file names them."""

    question_id: int | str | None = None
    category: str | None = None
    turn: int = 1


class Report(Protocol):
    """Hears about one answer after the other, while they are made."""

    def begin(self, title: str | None, prompt: str, asked: Asked) -> None:
        """An answer to ``prompt`` starts; ``title`` names it where there are several."""

    def text(self, piece: str) -> None:
        """A further piece of the answer."""

    def end(self, completion: Completion) -> None:
        """The answer is finished."""


class TextReport:
    """The answer on standard output as it comes, its figures on standard error.

    What loading and compiling took is told with the first answer, and again when more was compiled.
    """

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None

    def begin(self, title: str | None, prompt: str, asked: Asked) -> None:
        """Print a heading and the prompt, if there is a title."""
        if title is not None:
            quoted = "\n".join(f"> {printable(each, len(each))}" for each in prompt.expandtabs().splitlines())
            print(f"--- {printable(title)} ---\n{quoted}", flush=True)

    def text(self, piece: str) -> None:
        """Print the piece at once."""
        print(piece, end="", flush=True)

    def end(self, completion: Completion) -> None:
        """End the line of the answer and print the figures."""
        print(flush=True)
        start = (completion.seconds.load, completion.seconds.compile)
        line, self._start = figures(completion, start=start != self._start), start
        print(line, file=sys.stderr, flush=True)


class JsonReport:
    """One JSON object per answer on standard output, UTF-8, one a line; the figures on standard error."""

    def __init__(self) -> None:
        self._asked = Asked()

    def begin(self, title: str | None, prompt: str, asked: Asked) -> None:
        """Print nothing."""
        self._asked = asked

    def text(self, piece: str) -> None:
        """Print nothing: the object holds the whole text."""

    def end(self, completion: Completion) -> None:
        """Print the object and the figures."""
        print(
            json.dumps({**asdict(self._asked), **record(completion)}, ensure_ascii=False, allow_nan=False),
            flush=True,
        )
        print(figures(completion), file=sys.stderr, flush=True)
