"""The host loop: admits requests to slots, reads prompts in chunks, runs cycles, and ends answers.

Plain and speculative decoding, one request and a server's many, are this one loop over compiled Cells:

``prefill(window, start, count, state) -> state``
    reads a chunk of each prompt into the caches;
``cycle(root, n, active, params, uniforms, state, *hints) -> report, state``
    emits at least one token per active sequence. The report (``tree.report``) is all that is read back.

The last token of a prompt is not read: it is the first root, so that the first token of an answer comes out
of a cycle like every other one. A slot whose answer ends takes the next request while the others go on (Yu et
al., "Orca", OSDI 2022, iteration-level scheduling).
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_eagle.engine.answer import Answer
from ms_eagle.engine.compile_cache import CompileCache
from ms_eagle.engine.compiled import Compiled
from ms_eagle.engine.controls import Controls
from ms_eagle.engine.graphs import Graphs
from ms_eagle.engine.observer import Observer
from ms_eagle.engine.requests import (
    Completion,
    GenerationOptions,
    Progress,
    Request,
    TurnName,
    check_prompt,
)
from ms_eagle.engine.slots import Slot, Slots
from ms_eagle.errors import UserError
from ms_eagle.text.tokenizer import Tokenizer
from ms_eagle.tree.report import COUNT, FAULT, HEALTHY, TEACHER_NOT_FINITE, TOKENS
from ms_eagle.tree.shape import Tier

OnText = Callable[[int, str], None]
OnTokens = Callable[[list[list[int]]], None]
_WORTH_A_PREFILL = 0.25  # share of a prefill call's places: below it, rows of plain cycles are cheaper


class Engine:
    """Generates with one set of compiled graphs; for one thread.

    Attributes:
        graphs, tokenizer: what it was made of.
        directory: where the model's files are.
        load_seconds: time it took to load the model, as told by the loader.
        cache: of compiled graphs, or None.
        observer: follows every request; None where nobody does.
    """

    def __init__(
        self,
        graphs: Graphs,
        tokenizer: Tokenizer,
        *,
        directory: Path,
        load_seconds: float = 0.0,
        cache: CompileCache | None = None,
        observer: Observer | None = None,
        choose_tier: Callable[[], Tier] | None = None,
    ) -> None:
        """Take graphs, which nothing else calls meanwhile.

        Args:
            graphs, tokenizer, directory, load_seconds, observer: see the class.
            cache: keeps what the first call compiles for the next process; None keeps nothing.
            choose_tier: called before every cycle; None always takes the first tier.
        """
        self.graphs, self.tokenizer, self.directory = graphs, tokenizer, directory
        self.load_seconds, self.cache, self.observer = load_seconds, cache, observer
        sizes = graphs.facts.sizes
        self._choose_tier = choose_tier or (lambda: sizes.tiers[0])
        self._slots = Slots(sizes.batch)
        self._controls = Controls(sizes.batch, graphs.facts.positions)
        self._compiled = Compiled(graphs, self._controls, cache)
        self._waiting: deque[tuple[int, Request]] = deque()
        self._submitted = 0
        self._state: Tensor | None = None
        self._seen = False  # whether the device knows the tokens of all sequences
        self._teacher: Engine | None = None

    def alone(self) -> "Engine":
        """An engine of the teacher alone over the same caches; use one of the two at a time."""
        return Engine(
            self.graphs.alone(), self.tokenizer, directory=self.directory, load_seconds=self.load_seconds
        )

    @property
    def compilations(self) -> int:
        """How many graphs have been compiled so far; constant after warm-up."""
        return self._compiled.count + (0 if self._teacher is None else self._teacher.compilations)

    @property
    def compile_seconds(self) -> float:
        """Time spent compiling so far."""
        return self._compiled.seconds

    def warm_up(self, options: GenerationOptions) -> None:
        """Compile what ``options`` need and run it once on idle sequences: only the trash slot changes."""
        with self._watched():
            if self.graphs.facts.scripted:
                self._rehearsal().warm_up(options)
            self._compiled.warm_up(not options.sampling.plain)
            if self.observer is not None:
                self.observer.warm_up(not options.sampling.plain)

    def check_prompt(self, prompt: Sequence[int], options: GenerationOptions) -> None:
        """Refuse a prompt that cannot be continued; compiles nothing.

        Raises:
            UserError: it is empty, leaves no room for an answer, or holds an id outside the vocabulary.
        """
        with self._watched():
            check_prompt(prompt, options, self.graphs.facts)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions | Sequence[GenerationOptions],
        on_text: OnText | None = None,
        *,
        on_tokens: OnTokens | None = None,
        reuse_prefix: bool = False,
        names: Sequence[TurnName] | None = None,
    ) -> list[Completion]:
        """Continue every prompt; nothing else may be in flight.

        Args:
            prompts: token ids, at least one each.
            options: the same for all of them, or one for each.
            on_text: called with the index of a prompt and a new piece of its answer.
            on_tokens: called after every cycle with the new tokens of each prompt, none where there are none.
            reuse_prefix: keep what the caches already hold of a prompt's beginning (multi-turn chat).
            names: what the prompts are called in a trace.

        Returns:
            the answers in order; after Ctrl-C only those that were begun.

        Raises:
            UserError: see ``check_prompt``, or logits that are not finite.
        """
        each = [options] * len(prompts) if isinstance(options, GenerationOptions) else list(options)
        named = list(names) if names is not None else [None] * len(prompts)
        requests = [
            Request(prompt, own, name, reuse_prefix)
            for prompt, own, name in zip(prompts, each, named, strict=True)
        ]
        return self.run(requests, on_text, on_tokens)

    def run(
        self, requests: Sequence[Request], on_text: OnText | None = None, on_tokens: OnTokens | None = None
    ) -> list[Completion]:
        """Answer requests until all are finished; see ``generate``."""
        if self.busy:
            raise RuntimeError("other requests are in flight: expected step() to finish them first")
        for request in requests:
            self.check_prompt(request.prompt, request.options)
        if self.graphs.facts.scripted and not all(request.script for request in requests):
            answers = self._rehearse(requests)
            if any(answer.finish_reason == "interrupted" for answer in answers):
                return [answer.unsaid(self.graphs.facts.drafter) for answer in answers]
            requests = [
                replace(request, script=[*request.prompt, *answer.token_ids])
                for request, answer in zip(requests, answers, strict=True)
            ]
        first = self._submitted
        completions: dict[int, Completion] = {}

        def tell(news: Sequence[Progress]) -> None:
            for each in news:
                if on_text is not None and each.text:
                    on_text(each.number - first, each.text)
                if each.completion is not None:
                    completions[each.number - first] = each.completion
            if on_tokens is not None and news:
                tokens = {each.number - first: list(each.tokens) for each in news}
                on_tokens([tokens.get(index, []) for index in range(len(requests))])

        try:
            for request in requests:
                self.submit(request)
            while self.busy:
                tell(self.step())
        except KeyboardInterrupt:
            tell(self.cancel(range(first, self._submitted)))
        return [completions[index] for index in sorted(completions)]

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._slots.active)

    def submit(self, request: Request) -> int:
        """Let a request wait for a free slot; returns its number.

        Raises:
            UserError: see ``check_prompt``.
        """
        self.check_prompt(request.prompt, request.options)
        self._waiting.append((self._submitted, request))
        self._submitted += 1
        return self._submitted - 1

    def step(self) -> list[Progress]:
        """Admit what waits, then read a chunk of the prompts or run one cycle.

        Returns:
            news of the requests that there are any of.

        Raises:
            UserError: logits that are not finite. Whatever is raised, all requests in flight are dropped and
                the caches emptied: the engine is ready for others.
        """
        with self._watched():
            try:
                news = self._admit()
                if self._slots.active:
                    if self._prefill_due():
                        self._read()
                    else:
                        news += self._cycle()
                if not self._slots.active and self.observer is not None:
                    self.observer.settle()
            except Exception:
                self._reset()
                raise
        return news

    def cancel(self, numbers: Collection[int]) -> list[Progress]:
        """End these requests, keeping what was produced; those that were not begun are dropped."""
        self._waiting = deque(each for each in self._waiting if each[0] not in numbers)
        rows = [row for row in self._slots.active if self._slots[row].number in numbers]
        before = {row: len(self._slots[row].answer.text) for row in rows}
        for row in rows:
            self._slots[row].answer.end("interrupted")
        news = [self._news(row, len(self._slots[row].answer.token_ids), before[row]) for row in rows]
        if self.observer is not None and not self._slots.active:
            self.observer.settle()
        return news

    def _admit(self) -> list[Progress]:
        """Give free slots to waiting requests; news of those that are finished at once."""
        news: list[Progress] = []
        while self._waiting:
            number, request = self._waiting[0]
            row = self._slots.free_for(request)
            if row is None:
                break
            self._waiting.popleft()
            if self.observer is not None:
                self.observer.settle()
            room = max(0, self.graphs.facts.sizes.capacity - len(request.prompt))
            answer = Answer(self.tokenizer, request.options, min(request.options.max_new_tokens, room))
            slot = self._slots[row]
            slot.admit(number, request, answer)
            if self.observer is not None:
                self.observer.admitted(row, request)
            self._controls.set(row, request.options.sampling)
            self._seen = False
            if not slot.active:
                news.append(self._news(row, 0, 0))
        return news

    def _prefill_due(self) -> bool:
        """Whether the next call reads prompts; few tokens of a teacher alone go through its cycles."""
        sizes = self.graphs.facts.sizes
        waiting = sum(min(slot.unread, sizes.chunk) for slot in self._slots)
        reading_only = all(self._slots[row].unread for row in self._slots.active)
        if self.graphs.facts.drafts or sizes.batch == 1 or reading_only:
            return waiting > 0
        return waiting >= max(1, _WORTH_A_PREFILL * sizes.batch * sizes.chunk)

    def _read(self) -> None:
        """Read up to C prompt tokens of every slot."""
        window, start, count = self._slots.windows(self.graphs.facts.sizes.chunk)
        self._compiled.need(self.graphs.facts.sizes.tiers[0], self._sampled)
        state = self.graphs.empty() if self._state is None else self._state
        self._state = self.graphs.prefill()(Tensor(window), Tensor(start), Tensor(count), state)
        for slot, read in zip(self._slots, count.tolist(), strict=True):
            slot.n += read

    @property
    def _sampled(self) -> bool:
        """Whether any active request needs more than the argmax of the logits as they are."""
        return any(not self._slots[row].request.options.sampling.plain for row in self._slots.active)

    def _cycle(self) -> list[Progress]:
        """One cycle of all slots whose prompts are read."""
        rows = self._slots.active
        sampled, tier = self._sampled, self._choose_tier()
        hints = self.graphs.hints(tier, *self._slots.texts)
        if self.graphs.tier_for(tier, hints) != tier:
            tier, hints = None, ()
        self._compiled.need(tier, sampled)
        self._begin_decoding(rows)
        if sampled and not self._seen:
            self.graphs.see([slot.seen for slot in self._slots])
        active = np.isin(np.arange(len(self._slots)), rows)
        roots = self._slots.per_row(lambda slot: slot.sequence[slot.n], rows)
        n = self._slots.per_row(lambda slot: slot.n, rows)
        state = self.graphs.empty() if self._state is None else self._state
        report, self._state = self.graphs.cycle(tier, sampled)(
            Tensor(roots), Tensor(n), Tensor(active), *self._controls.tensors(), state, *map(Tensor, hints)
        )
        self._seen = sampled  # a greedy cycle does not note what it emits
        report, now = report.asnumpy(), time.perf_counter()
        return [each for row in rows if (each := self._take(row, report[row], now)) is not None]

    def _begin_decoding(self, rows: Sequence[int]) -> None:
        """Note where reading ends for the slots that begin to decode."""
        fresh = [row for row in rows if self._slots[row].decode_begin is None and not self._slots[row].unread]
        if not fresh:
            return
        ms.runtime.synchronize()  # a device runs behind the host: its time belongs to the prefill
        now = time.perf_counter()
        for row in fresh:
            slot = self._slots[row]
            slot.decode_begin = slot.end = now
            if self.observer is not None:
                self.observer.read(row, slot.reused, now - slot.begin)

    def _take(self, row: int, report: np.ndarray, now: float) -> Progress | None:
        """Hand a slot what its cycle emitted; None while its prompt is read that way."""
        slot = self._slots[row]
        if report[FAULT] != HEALTHY:
            whose = "model" if report[FAULT] == TEACHER_NOT_FINITE else "drafter"
            raise UserError(
                f"the {whose}'s logits are not finite (NaN or infinity) after {slot.n + 1} tokens "
                f"in model.dtype={self.graphs.facts.dtype}: use float32 or bfloat16, or check its weights."
            )
        if slot.unread:
            slot.n += 1
            self._seen = False  # the choice that was noted is not the prompt's
            return None
        count = int(report[COUNT])
        emitted = report[TOKENS : TOKENS + count].tolist()
        slot.sequence += emitted
        slot.n += count
        slot.accepted.append(count - 1)
        slot.end = now
        tokens, text = len(slot.answer.token_ids), len(slot.answer.text)
        slot.answer.take(emitted)
        return self._news(row, tokens, text)

    def _news(self, row: int, tokens: int, text: int) -> Progress:
        """What a slot's answer has past so many tokens and characters, and its completion at its end."""
        slot = self._slots[row]
        completion = None if slot.active else self._completion(slot)
        if completion is not None and self.observer is not None:
            self.observer.finished(row, slot.sequence, slot.n, completion)
        answer = slot.answer
        return Progress(slot.number, tuple(answer.token_ids[tokens:]), answer.text[text:], completion)

    def _completion(self, slot: Slot) -> Completion:
        return slot.completion(self.graphs.facts, self.load_seconds, self.compile_seconds)

    def forget(self) -> None:
        """The caches hold nothing of this engine's any more: others have used them."""
        for slot in self._slots:
            slot.forget()
        self._state, self._seen = None, False

    def _reset(self) -> None:
        """After a fault: drop all requests and empty the caches."""
        self._waiting.clear()
        self.forget()
        self.graphs.clear()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell the observer, if there is one, of whatever goes wrong inside."""
        try:
            yield
        except Exception as error:
            if self.observer is not None:
                self.observer.fail(error)
            raise

    def _rehearsal(self) -> "Engine":
        if self._teacher is None:
            self._teacher = self.alone()
        return self._teacher

    def _rehearse(self, requests: Sequence[Request]) -> list[Completion]:
        """The teacher's own answers, through the same caches."""
        self.forget()
        teacher = self._rehearsal()
        teacher.forget()
        return teacher.run([replace(request, reuse_prefix=False) for request in requests])
