"""Follows reference mode: audits every answer at its end and writes the trace."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ms_eagle.cycle.stages import StagedCycle
from ms_eagle.engine.requests import Completion, Request, TurnName
from ms_eagle.reference.audit import Answered, Audit, Findings
from ms_eagle.reference.invariants import InvariantError
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.reference.trace import TraceWriter
from ms_eagle.text.tokenizer import IncrementalDecoder, Tokenizer

_TREE = ("tokens", "parents", "depths", "scores", "valid")
_SPOKEN = ("choices", "path", "emitted")
_DIGITS = 7  # of a float32 that mean something


@dataclass
class _Turn:
    """What is known of a slot's request.

    Attributes:
        request, name: of the request.
        decoder: of its answer's text.
        emitted: tokens so far.
        read: whether its prompt has been told of.
        answered: once it is finished, with the completion; until it has been audited.
    """

    request: Request
    name: TurnName
    decoder: IncrementalDecoder
    emitted: list[int] = field(default_factory=list)
    read: bool = False
    answered: tuple[Answered, Completion] | None = None

    @property
    def script(self) -> list[int] | None:
        """The continuation a scripted drafter proposes from; None for others."""
        return list(self.request.script[len(self.request.prompt) :]) or None


class Recorder:
    """The observer of reference mode (``observer.Observer``).

    Without a trace it only audits.
    """

    def __init__(self, graphs: ReferenceGraphs, tokenizer: Tokenizer, trace: TraceWriter | None) -> None:
        """Make the recorder, which hears of every cycle of ``graphs`` from now on."""
        self._graphs, self._tokenizer, self._trace = graphs, tokenizer, trace
        self._audit = Audit(graphs)
        self._unnamed = 0
        self._failed: Exception | None = None
        self._turns: dict[int, _Turn] = {}
        graphs.follow(self.cycled)

    def warm_up(self, sampled: bool) -> None:
        """See ``observer.Observer``."""
        self._audit.warm_up(sampled)

    def admitted(self, slot: int, request: Request) -> None:
        """See ``observer.Observer``."""
        self._graphs.restart()
        name = request.name
        if name is None:
            self._unnamed += 1
            name = TurnName(f"prompt {self._unnamed}", 1)
        self._turns[slot] = _Turn(request, name, IncrementalDecoder(self._tokenizer))

    def read(self, slot: int, reused: int, seconds: float) -> None:
        """See ``observer.Observer``: a prefill record."""
        turn = self._turns[slot]
        turn.read = True
        self._write(
            "prefill",
            slot,
            {
                "token_ids": list(turn.request.prompt),
                "text": self._tokenizer.decode(list(turn.request.prompt), skip_special_tokens=False),
                "reused": reused,
                "options": asdict(turn.request.options),
                "script": turn.script,
                "seconds": _short(seconds),
            },
        )

    def cycled(self, cycle: StagedCycle) -> None:
        """Note a complete cycle: a cycle record for each active sequence."""
        arrays = self._graphs.checks.arrays
        for slot, turn in self._turns.items():
            if not arrays["active"][slot]:
                continue
            count = int(arrays["count"][slot])
            tokens = arrays["emitted"][slot, :count].tolist()
            turn.emitted += tokens
            self._write(
                "cycle",
                slot,
                {
                    "n": int(arrays["n"][slot]),
                    "root": int(arrays["root"][slot]),
                    "tree": self._tree(arrays, slot),
                    "choices": arrays["choices"][slot].tolist(),
                    "choice_pieces": self._pieces(arrays["choices"][slot].tolist()),
                    "path": arrays["path"][slot, :count].tolist(),
                    "accept_L": count - 1,
                    "emitted": tokens,
                    "pieces": [turn.decoder.push(token) for token in tokens],
                    "seconds": {stage: _short(spent) for stage, spent in cycle.watch.seconds.items()},
                },
            )

    def finished(self, slot: int, sequence: Sequence[int], n: int, completion: Completion) -> None:
        """See ``observer.Observer``."""
        turn = self._turns[slot]
        if not turn.read:  # nothing was asked of the model, or it was interrupted before
            self.read(slot, 0, 0.0)
        request = turn.request
        turn.answered = Answered(request.prompt, list(sequence), n, request.options.sampling), completion

    def settle(self) -> None:
        """See ``observer.Observer``: audit what is finished, then a finish record for each.

        Raises:
            InvariantError: see ``Audit.check``.
        """
        finished = {slot: turn.answered for slot, turn in self._turns.items() if turn.answered is not None}
        whole = {
            slot: answered
            for slot, (answered, completion) in finished.items()
            if self._turns[slot].emitted and completion.finish_reason != "interrupted"
        }
        findings = self._audit.check(whole) if whole else None
        for slot, (_, completion) in finished.items():
            self._write("finish", slot, _finish(completion, findings if slot in whole else None, slot))
            del self._turns[slot]

    def fail(self, error: Exception) -> None:
        """See ``observer.Observer``: an error record with all that led to it; each error once."""
        turns, self._turns = self._turns, {}
        if error is self._failed or self._trace is None:
            return
        self._failed = error
        cycle = self._graphs.running()
        self._trace.write("error", {**describe(error), **self._circumstances(cycle, turns)})

    def _circumstances(self, cycle: StagedCycle | None, turns: dict[int, _Turn]) -> dict[str, Any]:
        arrays = None if cycle is None else self._graphs.checks.arrays
        rows = []
        for slot, turn in turns.items():
            tokens = [*turn.request.prompt, *turn.emitted]
            rows.append(
                {
                    **turn.name._asdict(),
                    "row": slot,
                    "prompt_tokens": len(turn.request.prompt),
                    "token_ids": tokens,
                    "n": len(tokens) - 1,
                    "active": arrays is None or bool(arrays["active"][slot]),
                    "options": asdict(turn.request.options),
                    "script": turn.script,
                    "tree": None if arrays is None else self._tree(arrays, slot),
                    **{name: None if arrays is None else _row(arrays, name, slot) for name in _SPOKEN},
                }
            )
        return {
            "stage": None if cycle is None else cycle.watch.stage,
            "rows": rows,
            "caches": {watch.name: watch.facts() for watch in self._graphs.watches},
        }

    def _write(self, kind: str, slot: int, record: dict[str, Any]) -> None:
        if self._trace is not None:
            self._trace.write(kind, {**self._turns[slot].name._asdict(), "row": slot, **record})

    def _tree(self, arrays: dict[str, np.ndarray], row: int) -> dict[str, Any] | None:
        """The rows of one sequence's tree, as far as they were read back."""
        if "valid" not in arrays:
            return None
        tree = {name: arrays[name][row].tolist() for name in _TREE}
        tree["scores"] = [_short(score) for score in tree["scores"]]
        return {**tree, "pieces": self._pieces(tree["tokens"])}

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each token reads like by itself; an id that is out of range has no text."""
        size = self._tokenizer.vocab_size
        known = [self._tokenizer.token_bytes(t) if 0 <= t < size else b"" for t in tokens]
        return [data.decode("utf-8", "replace") for data in known]


def describe(error: Exception) -> dict[str, Any]:
    """Kind and message of an error, and which invariant it violates."""
    violated = isinstance(error, InvariantError)
    return {
        "error": type(error).__name__,
        "message": str(error),
        "invariant": error.invariant if violated else None,
    }


def _finish(completion: Completion, findings: Findings | None, row: int) -> dict[str, Any]:
    checks = None
    if findings is not None:
        checks = {
            "cache_difference": {name: _short(x) for name, x in findings.cache_difference.items()},
            "ties": [asdict(tie) for tie in findings.ties[row]],
        }
    return {
        "finish_reason": completion.finish_reason,
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "prompt_tokens": completion.prompt_tokens,
        "new_tokens": completion.new_tokens,
        "cycles": completion.cycles,
        "accept_L": None if completion.accept_L is None else list(completion.accept_L),
        "seconds": {
            "prefill": _short(completion.seconds.prefill),
            "decode": _short(completion.seconds.decode),
        },
        "checks": checks,
    }


def _row(arrays: dict[str, np.ndarray], name: str, row: int) -> list[int] | None:
    return arrays[name][row].tolist() if name in arrays else None


def _short(number: float) -> float | None:
    """A number in as many digits as it has; None for what JSON cannot hold (a probability of 0)."""
    return float(f"{number:.{_DIGITS}g}") if np.isfinite(number) else None
