"""Runs peers side by side: the same prompts, every peer in turn, so that the machine's drift hits all."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ms_eagle.benchmark.peers.catalogue import Peer
from ms_eagle.benchmark.peers.models import Timing
from ms_eagle.benchmark.peers.process import PeerFailure, PeerProcess
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress

WARM_UP_TOKENS = 8
_JUDGE = "transformers"  # the kind of peer that can say how far apart two logits are


@dataclass(frozen=True)
class Difference:
    """Where a peer's answer leaves the reference's.

    Attributes:
        prompt: index of the prompt; token: index into the answer.
        reference, found: the two token ids.
        margin: how far apart transformers' logits of the two are there; None without transformers.
    """

    prompt: int
    token: int
    reference: int
    found: int
    margin: float | None = None


@dataclass
class Result:
    """What became of a peer.

    Attributes:
        failure: why it has no figures, one line; None if all went well.
        missing: whether the reason is that it is not installed.
        facts: versions and the like, as it states them.
        load_seconds: from the start of its process until it could answer.
        peak_bytes: most memory that was resident, mapped files included.
        timings: of every prompt, one for each round.
        differences: of every prompt whose answer is not the reference's.
        process: while it runs.
    """

    peer: Peer
    failure: str | None = None
    missing: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    load_seconds: float | None = None
    peak_bytes: int | None = None
    timings: list[list[Timing]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    process: PeerProcess | None = None

    def ask(self, call: str, *arguments: Any) -> Any:
        """The peer's answer; None if it failed, after which it does not run any more."""
        with self.failing():
            return self.process.ask(call, *arguments)
        return None

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Note a failure of the peer and end it."""
        try:
            yield
        except PeerFailure as failure:
            self.failure = str(failure)
            self.close()

    def close(self) -> None:
        """End its process, if it runs."""
        if self.process is not None:
            self.process.close()
            self.process = None


Start = Callable[[], PeerProcess]


def run(
    peers: Sequence[Peer],
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    rounds: int,
    start: Start,
    progress: Progress,
) -> list[Result]:
    """Run every peer that can run; whatever happens, no process is left.

    Args:
        peers: what to run; the first that finishes is the reference for token ids.
        prompts: token ids.
        new_tokens: length of every answer.
        rounds: how often each prompt is answered by each peer.
        start: starts the process of a peer.
        progress: shows the run.
    """
    results = [Result(peer, timings=[[] for _ in prompts]) for peer in peers]
    warm = min(WARM_UP_TOKENS, new_tokens)
    with contextlib.ExitStack() as stack:
        for result in results:
            stack.callback(result.close)
            _load(result, start, progress)
        total = len(_running(results)) * len(prompts) * (1 + rounds)
        step = stack.enter_context(progress.steps("running peers", total))
        for prompt in prompts:
            for result in _running(results):
                result.ask("generate", prompt, warm)
                step.advance()
        for turn in range(rounds):
            for index, prompt in enumerate(prompts):
                order = 1 if (turn + index) % 2 == 0 else -1
                for result in _running(results)[::order]:
                    answer = result.ask("generate", prompt, new_tokens)
                    if answer is not None:
                        timing = Timing(**{**answer, "token_ids": tuple(answer["token_ids"])})
                        result.timings[index].append(timing)
                    step.advance()
        for result in _running(results):
            result.peak_bytes = result.process.peak_memory()
        _compare(results, prompts)
    return results


def _running(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.process is not None]


def _load(result: Result, start: Start, progress: Progress) -> None:
    """Start a peer, unless it is not installed."""
    result.failure = result.peer.missing()
    if result.failure is not None:
        result.missing = True
        return
    try:
        settings = result.peer.settings(progress)
    except UserError as error:
        result.failure = str(error)
        return
    result.process = start()
    with result.failing(), progress.steps(f"loading {result.peer.name}"):
        answer = result.process.load(result.peer.kind, settings)
        result.facts, result.load_seconds = answer["facts"], answer["ready"]


def _compare(results: Sequence[Result], prompts: Sequence[Sequence[int]]) -> None:
    """Note where any answer differs from the first peer's first one."""
    finished = _running(results)
    for result in finished:
        for index, prompt in enumerate(prompts):
            reference = finished[0].timings[index][0].token_ids
            difference = first_difference(reference, [timing.token_ids for timing in result.timings[index]])
            if difference is None:
                continue
            token, other = difference
            judge = next((each for each in _running(results) if each.peer.kind == _JUDGE), None)
            context = [*prompt, *reference[:token]]
            margin = judge and judge.ask("margin", context, reference[token], other)
            result.differences.append(Difference(index, token, reference[token], other, margin))


def first_difference(reference: Sequence[int], answers: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Index and token of the earliest difference of any answer from ``reference``, all equally long."""
    differences = (
        (index, answer[index])
        for answer in answers
        for index in range(len(reference))
        if answer[index] != reference[index]
    )
    return min(differences, default=None)
