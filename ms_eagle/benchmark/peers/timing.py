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
        facts: versions and the like, as it told them.
        load_seconds: from the start of its process until it could answer.
        peak_bytes: most memory that was resident, mapped files included.
        timings: of every prompt, one for each round.
        differences: of every prompt whose answer is not the reference's.
    """

    peer: Peer
    failure: str | None = None
    missing: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    load_seconds: float | None = None
    peak_bytes: int | None = None
    timings: list[list[Timing]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


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
    results = [Result(peer) for peer in peers]
    for result in results:
        result.timings = [[] for _ in prompts]
    warm = min(WARM_UP_TOKENS, new_tokens)
    with contextlib.ExitStack() as stack:
        running = _Running(results, stack, start, progress)
        for result in results:
            running.load(result)
        total = len(running.in_order(forward=True)) * len(prompts) * (1 + rounds)
        step = stack.enter_context(progress.steps("running peers", total))
        for prompt in prompts:
            for result in running.in_order(forward=True):
                running.ask(result, "generate", prompt, warm)
                step.advance()
        for turn in range(rounds):
            for index, prompt in enumerate(prompts):
                for result in running.in_order(forward=(turn + index) % 2 == 0):
                    answer = running.ask(result, "generate", prompt, new_tokens)
                    if answer is not None:
                        result.timings[index].append(
                            Timing(**{**answer, "token_ids": tuple(answer["token_ids"])})
                        )
                    step.advance()
        for result in running.in_order(forward=True):
            result.peak_bytes = running.process(result).peak_memory()
        _compare(running, prompts)
    return results


class _Running:
    """The peers that are alive."""

    def __init__(
        self, results: Sequence[Result], stack: contextlib.ExitStack, start: Start, progress: Progress
    ) -> None:
        self._results, self._stack, self._start, self._progress = results, stack, start, progress
        self._processes: dict[str, PeerProcess] = {}

    def load(self, result: Result) -> None:
        """Start a peer, unless it is not installed."""
        result.failure = result.peer.missing()
        if result.failure is not None:
            result.missing = True
            return
        try:
            settings = result.peer.settings(self._progress)
        except UserError as error:
            result.failure = str(error)
            return
        process = self._start()
        self._stack.callback(process.close)
        self._processes[result.peer.name] = process
        with self._failing(result), self._progress.steps(f"loading {result.peer.name}"):
            answer = process.load(result.peer.kind, settings)
            result.facts, result.load_seconds = answer["facts"], answer["ready"]

    def in_order(self, forward: bool) -> list[Result]:
        """The living, in the order in which they were given or the other way round."""
        living = [result for result in self._results if result.peer.name in self._processes]
        return living if forward else living[::-1]

    def process(self, result: Result) -> PeerProcess:
        """The process of a living peer."""
        return self._processes[result.peer.name]

    def ask(self, result: Result, call: str, *arguments: Any) -> Any:
        """A peer's answer; None if it failed, after which it is not among the living."""
        with self._failing(result):
            return self.process(result).ask(call, *arguments)
        return None

    @contextlib.contextmanager
    def _failing(self, result: Result) -> Iterator[None]:
        try:
            yield
        except PeerFailure as failure:
            result.failure = str(failure)
            self._processes.pop(result.peer.name).close()


def _compare(running: _Running, prompts: Sequence[Sequence[int]]) -> None:
    """Note where any answer differs from the first peer's first one."""
    living = running.in_order(forward=True)
    for result in living:
        for index, prompt in enumerate(prompts):
            reference = living[0].timings[index][0].token_ids
            found = first_difference(reference, [timing.token_ids for timing in result.timings[index]])
            if found is None:
                continue
            token, other = found
            margin = None
            judges = [each for each in running.in_order(forward=True) if each.peer.kind == _JUDGE]
            if judges:
                context = [*prompt, *reference[:token]]
                margin = running.ask(judges[0], "margin", context, reference[token], other)
            result.differences.append(Difference(index, token, reference[token], other, margin))


def first_difference(reference: Sequence[int], answers: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Index and token of the earliest difference of any answer from ``reference``, all equally long."""
    found = [
        (index, answer[index])
        for answer in answers
        for index in range(len(reference))
        if answer[index] != reference[index]
    ]
    return min(found, default=None)
