"""Running a record of a trace again: one cycle from a fresh cache, or a whole answer.

A cycle depends on the tokens before it, the sampling options and, for a synthetic drafter, its script. All
of them are in the trace, so any cycle, and the one that an error ended, can be run again by itself.
"""

from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_eagle.engine.controls import Controls
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import GenerationOptions, Request
from ms_eagle.errors import UserError
from ms_eagle.reference.audit import read_fresh
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.reference.trace import Record, Trace, Turn
from ms_eagle.sampling.options import SamplingParams

# Cumulative log-probabilities may differ by this much: a fresh cache holds other roundings.
SCORE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Standing:
    """One sequence as it stood before a cycle.

    Attributes:
        row: its place in the batch.
        prompt: token ids.
        tokens: prompt and emitted tokens; the last one is the root.
        options: of the answer.
        script: the continuation a synthetic drafter proposes from, else None.
    """

    row: int
    prompt: list[int]
    tokens: list[int]
    options: GenerationOptions
    script: list[int] | None

    def whole(self) -> list[int]:
        """The script with the prompt before it, as a drafter takes it; empty for other drafters."""
        return [] if self.script is None else [*self.prompt, *self.script]


@dataclass(frozen=True)
class Replayed:
    """One sequence after a replay.

    Attributes:
        row: its place in the batch.
        emitted: the tokens it emitted this time.
        differences: names of what came out otherwise than in the record; empty where all is equal.
    """

    row: int
    emitted: list[int]
    differences: tuple[str, ...]


def replay(engine: Engine, trace: Trace, record: Record) -> list[Replayed]:
    """Run a record again.

    Args:
        engine: in reference mode, loaded from the trace's configuration; not to be used for anything else
            afterwards.
        trace: the trace.
        record: one of its cycle records, or an error record. The cycle that an error ended is run again;
            an error outside a cycle runs its answers again from their prompts.

    Raises:
        UserError: the engine is not in reference mode, or the record holds no answer.
        InvariantError: the violation that ended the run, if it happens again.
    """
    if not isinstance(engine.graphs, ReferenceGraphs):
        raise UserError("a replay needs an engine in reference mode: set execution.mode=reference")
    requests = requests_of(trace, record)
    if not requests:
        raise UserError(f"the {record['record']} record belongs to no answer: there is nothing to replay")
    if record["record"] == "error" and record["stage"] is None:
        return _answers(engine, requests)
    arrays = _cycle(engine.graphs, requests)
    recorded = {row["row"]: row for row in record["rows"]} if "rows" in record else {record["row"]: record}
    return [
        Replayed(
            request.row,
            arrays["emitted"][request.row, : arrays["count"][request.row]].tolist(),
            tuple(_differences(arrays, request.row, recorded[request.row])),
        )
        for request in requests
    ]


def requests_of(trace: Trace, record: Record) -> list[Standing]:
    """The sequences that a cycle or error record is about, as they stood before it.

    Raises:
        UserError: it is a record of another kind.
    """
    if record["record"] == "error":
        return [
            Standing(
                row["row"],
                row["token_ids"][: row["prompt_tokens"]],
                row["token_ids"],
                _options(row["options"]),
                row["script"],
            )
            for row in record["rows"]
            if row["active"]
        ]
    if record["record"] != "cycle":
        raise UserError(f"a {record['record']} record cannot be replayed; expected a cycle or an error")
    turn = _turn_of(trace, record)
    tokens = list(turn.prefill["token_ids"])
    for cycle in turn.cycles:
        if cycle is record:
            break
        tokens += cycle["emitted"]
    prefill = turn.prefill
    return [
        Standing(record["row"], prefill["token_ids"], tokens, _options(prefill["options"]), prefill["script"])
    ]


def _turn_of(trace: Trace, record: Record) -> Turn:
    turn = next((t for t in trace.turns if any(cycle is record for cycle in t.cycles)), None)
    if turn is None:
        raise UserError("the record is not one of this trace: take it from trace.turns[i].cycles")
    return turn


def _options(values: Record) -> GenerationOptions:
    sampling = SamplingParams(**_tuples(values["sampling"]))
    return GenerationOptions(**{**_tuples(values), "sampling": sampling})


def _tuples(values: Record) -> Record:
    """``values`` with tuples for lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _answers(engine: Engine, requests: list[Standing]) -> list[Replayed]:
    """Run whole answers again and compare the tokens with those that were emitted."""
    completions = engine.run([Request(r.prompt, r.options, script=r.whole()) for r in requests])
    replayed = []
    for request, completion in zip(requests, completions, strict=True):
        emitted, before = list(completion.token_ids), request.tokens[len(request.prompt) :]
        common = min(len(emitted), len(before))
        differences = () if emitted[:common] == before[:common] else ("emitted",)
        replayed.append(Replayed(request.row, emitted, differences))
    return replayed


def _cycle(graphs: ReferenceGraphs, requests: list[Standing]) -> dict[str, np.ndarray]:
    """Fill the caches and run one cycle; what it produced, by name."""
    batch = graphs.facts.sizes.batch
    slots: list[Standing | None] = [None] * batch
    controls = Controls(batch, graphs.facts.positions)
    for request in requests:
        slots[request.row] = request
        controls.set(request.row, request.options.sampling)
    sequences = [[] if slot is None else slot.tokens for slot in slots]
    scripts = [() if slot is None else slot.whole() for slot in slots]
    active = np.array([slot is not None for slot in slots])
    n = np.array([max(0, len(sequence) - 1) for sequence in sequences], np.int32)
    roots = np.array([sequence[-1] if sequence else 0 for sequence in sequences], np.int32)
    graphs.see([[] if s is None else [*s.tokens, *s.options.sampling.penalised] for s in slots])
    state = read_fresh(graphs, [sequence or [0] for sequence in sequences], n)
    tier = graphs.facts.sizes.tiers[0]
    sampled = any(not request.options.sampling.plain for request in requests)
    hints = [Tensor(hint) for hint in graphs.hints(tier, sequences, scripts)]
    cycle = graphs.cycle(tier, sampled)
    cycle(Tensor(roots), Tensor(n), Tensor(active), *controls.tensors(), state, *hints)
    return graphs.checks.arrays


def _differences(arrays: dict[str, np.ndarray], row: int, record: Record) -> list[str]:
    """Names of the fields that a record has and that came out otherwise."""
    found = []
    tree = record.get("tree") or {}
    for name in ("tokens", "parents", "depths", "valid"):
        if name in tree and tree[name] != arrays[name][row].tolist():
            found.append(name)
    if "scores" in tree:
        recorded = np.array([-np.inf if score is None else score for score in tree["scores"]])
        if not np.allclose(recorded, arrays["scores"][row], rtol=0, atol=SCORE_TOLERANCE):
            found.append("scores")
    count = int(arrays["count"][row])
    now = {
        "choices": arrays["choices"][row].tolist(),
        "path": arrays["path"][row, :count].tolist(),
        "emitted": arrays["emitted"][row, :count].tolist(),
    }
    for name, value in now.items():
        before = record.get(name)
        if before is not None and before[: len(value)] != value:
            found.append(name)
    return found
