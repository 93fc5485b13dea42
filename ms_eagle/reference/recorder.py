"""Follows reference mode: audits every answer at its end and writes the trace."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ms_eagle.drafters.scripted import SyntheticProposer
from ms_eagle.engine.observer import TurnName
from ms_eagle.engine.requests import Completion, GenerationOptions
from ms_eagle.reference.audit import Audit, Findings
from ms_eagle.reference.cycle import Facts, ReferenceCycle
from ms_eagle.reference.invariants import InvariantError
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.reference.trace import TraceWriter
from ms_eagle.text.tokenizer import IncrementalDecoder, Tokenizer

_TREE = ("tokens", "parents", "depths", "scores", "valid")
_SPOKEN = ("choices", "path", "emitted")
_DIGITS = 7  # of a float32 that mean something


class Recorder:
    """The observer of reference mode (``observer.Observer``).

    Without a trace it only audits.
    """

    def __init__(self, graphs: ReferenceGraphs, tokenizer: Tokenizer, trace: TraceWriter | None) -> None:
        """Make the recorder; ``graphs.follow`` puts it to work."""
        self._graphs, self._tokenizer, self._trace = graphs, tokenizer, trace
        self._audit = Audit(graphs)
        self._announced: list[TurnName] = []
        self._unnamed = 0
        self._told: Exception | None = None
        self._clear()

    def _clear(self) -> None:
        self._prompts: list[list[int]] = []
        self._options: list[GenerationOptions] = []
        self._names: list[TurnName] = []
        self._emitted: list[list[int]] = []
        self._decoders: list[IncrementalDecoder] = []
        self._cycle: ReferenceCycle | None = None
        self._was_read = False

    def announce(self, names: Sequence[TurnName] | None) -> None:
        """See ``observer.Observer``."""
        self._announced = list(names or ())

    def begin(self, prompts: Sequence[Sequence[int]], options: Sequence[GenerationOptions]) -> None:
        """See ``observer.Observer``."""
        self._clear()
        self._prompts, self._options = [list(prompt) for prompt in prompts], list(options)
        for _ in prompts:
            self._names.append(self._announced.pop(0) if self._announced else self._next_name())
            self._decoders.append(IncrementalDecoder(self._tokenizer))
            self._emitted.append([])

    def _next_name(self) -> TurnName:
        self._unnamed += 1
        return TurnName(f"prompt {self._unnamed}", 1)

    def read(self, reused: np.ndarray, seconds: float) -> None:
        """See ``observer.Observer``: a prefill record for each prompt."""
        self._was_read = True
        for row, (prompt, options) in enumerate(zip(self._prompts, self._options, strict=True)):
            self._write(
                "prefill",
                row,
                {
                    "token_ids": prompt,
                    "text": self._tokenizer.decode(prompt, skip_special_tokens=False),
                    "reused": int(reused[row]),
                    "options": asdict(options),
                    "script": self._script(row),
                    "seconds": _short(seconds),
                },
            )

    def cycled(self, cycle: ReferenceCycle) -> None:
        """Note a complete cycle: a cycle record for each active sequence."""
        self._cycle, arrays = cycle, cycle.facts.arrays
        for row, emitted in enumerate(self._emitted):
            if not arrays["active"][row]:
                continue
            count = int(arrays["count"][row])
            tokens = arrays["emitted"][row, :count].tolist()
            emitted += tokens
            decoder = self._decoders[row]
            self._write(
                "cycle",
                row,
                {
                    "n": int(arrays["n"][row]),
                    "root": int(arrays["root"][row]),
                    "tree": self._tree(arrays, row),
                    "choices": arrays["choices"][row].tolist(),
                    "choice_pieces": self._pieces(arrays["choices"][row].tolist()),
                    "path": arrays["path"][row, :count].tolist(),
                    "accept_L": count - 1,
                    "emitted": tokens,
                    "pieces": [decoder.push(token) for token in tokens],
                    "seconds": {stage: _short(spent) for stage, spent in cycle.facts.seconds.items()},
                },
            )

    def end(
        self, sequences: Sequence[Sequence[int]], n: np.ndarray, completions: Sequence[Completion]
    ) -> None:
        """See ``observer.Observer``: audit, then a finish record for each prompt.

        Raises:
            InvariantError: see ``Audit.check``.
        """
        if not self._was_read:  # nothing was asked of the model, or it was interrupted before
            self.read(np.zeros(len(self._prompts), np.int32), 0.0)
        interrupted = any(completion.finish_reason == "interrupted" for completion in completions)
        findings = None
        if self._cycle is not None and not interrupted:
            findings = self._check(sequences, n)
        for row, completion in enumerate(completions):
            self._write("finish", row, _finish(completion, findings, row))
        self._clear()

    def _check(self, sequences: Sequence[Sequence[int]], n: np.ndarray) -> Findings:
        idle = self._graphs.batch - len(self._prompts)
        began = [bool(emitted) for emitted in self._emitted] + [False] * idle
        prompts = [*self._prompts, *([0] for _ in range(idle))]
        penalised = [*(each.sampling.penalised for each in self._options), *([] for _ in range(idle))]
        return self._audit.check(
            prompts,
            sequences,
            np.where(began, n, 0).astype(np.int32),
            seen=[[*prompt, *others] for prompt, others in zip(prompts, penalised, strict=True)],
            greedy=self._cycle is self._graphs.cycle(True),
            controls=self._cycle.controls,
        )

    def fail(self, error: Exception) -> None:
        """See ``observer.Observer``: an error record with all that a replay needs; each error once."""
        if error is self._told or self._trace is None:
            return
        self._told = error
        running = [self._graphs.cycle(greedy) for greedy in (True, False)]
        facts = next((c.facts for c in running if c.facts.arrays and not c.complete), None)
        self._trace.write("error", {**describe(error), **self._circumstances(facts)})

    def _circumstances(self, facts: Facts | None) -> dict[str, Any]:
        rows = []
        for row, name in enumerate(self._names):
            tokens = self._prompts[row] + self._emitted[row]
            rows.append(
                {
                    **name._asdict(),
                    "row": row,
                    "prompt_tokens": len(self._prompts[row]),
                    "token_ids": tokens,
                    "n": len(tokens) - 1,
                    "active": facts is None or bool(facts.arrays["active"][row]),
                    "options": asdict(self._options[row]),
                    "script": self._script(row),
                    "tree": None if facts is None else self._tree(facts.arrays, row),
                    **{name: None if facts is None else _row(facts.arrays, name, row) for name in _SPOKEN},
                }
            )
        return {
            "stage": None if facts is None else facts.stage,
            "rows": rows,
            "caches": {watch.name: watch.facts() for watch in self._graphs.watches},
        }

    def _write(self, kind: str, row: int, record: dict[str, Any]) -> None:
        if self._trace is not None:
            self._trace.write(kind, {**self._names[row]._asdict(), "row": row, **record})

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

    def _script(self, row: int) -> list[int] | None:
        """The continuation that a synthetic drafter proposes from, None for others."""
        proposer = self._graphs.proposer
        if not isinstance(proposer, SyntheticProposer):
            return None
        script = proposer.script.asnumpy()[row, len(self._prompts[row]) :]
        used = np.flatnonzero(script)
        return script[: used[used.size - 1] + 1].tolist() if used.size else []


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
