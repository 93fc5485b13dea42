"""The host loop: reads prompts in chunks, runs cycles, and ends answers.

Teacher-only and speculative decoding are this one loop; they differ in the two compiled Cells it calls:

``prefill(window, start, count, state) -> state``
    reads a chunk of each prompt into the caches;
``cycle(root, n, active, params, uniforms, state) -> report, state``
    emits at least one token per active sequence. The report, int32 ``[B, 2 + width]``, is the only thing
    read back from the device: count, fault flag, and up to ``width`` tokens.

The last token of a prompt is not read: it is the first root, so that the first token of an answer comes
out of a cycle like every other one.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.engine.answer import Answer
from ms_eagle.engine.compile_cache import CompileCache
from ms_eagle.engine.observer import Observer, TurnName
from ms_eagle.engine.requests import Completion, GenerationOptions, Seconds
from ms_eagle.engine.windows import windows
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import params_tensor
from ms_eagle.sampling.uniforms import uniform_table
from ms_eagle.text.tokenizer import Tokenizer
from ms_eagle.tree.report import HEALTHY, TEACHER_NOT_FINITE

OnText = Callable[[int, str], None]
OnTokens = Callable[[list[list[int]]], None]
COUNT, FAULT, TOKENS = 0, 1, 2  # columns of a cycle's report


class Graphs(Protocol):
    """The compiled side of decoding that an `Engine` drives; see the module's docstring.

    Attributes:
        batch, chunk: B and C, fixed shapes of every call.
        positions: P, how many absolute positions a call may name.
        capacity: most tokens of a sequence, prompt and answer together.
        drafter, kernels, mode: names for reports.
        observer: hears of every request; None where nobody listens.
    """

    batch: int
    chunk: int
    positions: int
    capacity: int
    vocab_size: int
    drafter: str
    kernels: str
    mode: str
    observer: Observer | None

    def prefill(self) -> nn.Cell:
        """The Cell that reads a chunk."""

    def cycle(self, greedy: bool) -> nn.Cell:
        """The Cell of one cycle, for greedy rows only or for any sampling."""

    def initial_state(self) -> Tensor:
        """State to start a request with."""

    def clear(self) -> None:
        """Empty all caches, after logits that were not finite."""

    def start_request(self, prompts: Sequence[Sequence[int]]) -> None:
        """Take note of new prompts, one per sequence, before they are read."""


class Engine:
    """Generates with one set of compiled graphs; one call at a time.

    Attributes:
        directory: where the model's files are.
        load_seconds: time it took to load the model, as told by the loader.
        compile_seconds: time spent compiling so far.
        cache: of compiled graphs, or None.
    """

    def __init__(
        self,
        graphs: Graphs,
        tokenizer: Tokenizer,
        *,
        directory: Path,
        dtype: str,
        load_seconds: float,
        cache: CompileCache | None = None,
    ) -> None:
        """``cache``: keeps what the first call compiles for the next process; None keeps nothing."""
        self.graphs = graphs
        self.tokenizer = tokenizer
        self.directory = directory
        self.load_seconds = load_seconds
        self.compile_seconds = 0.0
        self.cache = cache
        self._dtype = dtype
        self._ready: set[bool] = set()
        self._cached: list[list[int]] = [[] for _ in range(graphs.batch)]

    @property
    def compilations(self) -> int:
        """How many graphs have been compiled so far; constant after warm-up."""
        cells = [self.graphs.prefill(), *(self.graphs.cycle(greedy) for greedy in sorted(self._ready))]
        return sum(len(cell.compile_cache) for cell in cells)

    def warm_up(self, options: GenerationOptions) -> None:
        """Compile what ``options`` need and run it once on idle sequences: only the trash slot changes."""
        with self._watched():
            self._warm_up([options])

    def _warm_up(self, options: Sequence[GenerationOptions]) -> None:
        greedy = _plain(options)
        if greedy in self._ready:
            return
        begin = time.perf_counter()
        with self._first_graphs("greedy" if greedy else "sampled"):
            self._run_idle(options, greedy)
        self._ready.add(greedy)
        self.compile_seconds += time.perf_counter() - begin

    def _first_graphs(self, kind: str) -> contextlib.AbstractContextManager[None]:
        if self.cache is None or self._ready:
            return contextlib.nullcontext()
        return self.cache.start(kind)

    def _run_idle(self, options: Sequence[GenerationOptions], greedy: bool) -> None:
        """Call both graphs for sequences that take no part."""
        batch, width = self.graphs.batch, self.graphs.chunk + 1
        idle = Tensor(np.zeros(batch, np.int32))
        window = Tensor(np.zeros((batch, width), np.int32))
        state = self.graphs.prefill()(window, idle, idle, self.graphs.initial_state())
        asleep = Tensor(np.zeros(batch, bool))
        controls = self._controls(options)
        report, _ = self.graphs.cycle(greedy)(idle, idle, asleep, *controls, state)
        report.asnumpy()

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
        """Continue every prompt; B of them at a time.

        Args:
            prompts: token ids, at least one each.
            options: the same for all of them, or one for each.
            on_text: called with the index of a prompt and a new piece of its answer.
            on_tokens: called after every cycle with the new tokens of each prompt, none where there are none.
            reuse_prefix: keep what the caches already hold of a prompt's beginning (multi-turn chat).
            names: what the prompts are called in a trace.

        Raises:
            UserError: an empty prompt, one that leaves no room for an answer, an id outside the
                vocabulary, or logits that are not finite.
        """
        each = [options] * len(prompts) if isinstance(options, GenerationOptions) else list(options)
        for prompt, wanted in zip(prompts, each, strict=True):
            self.check_prompt(prompt, wanted)
        if self.graphs.observer is not None:
            self.graphs.observer.announce(names)
        completions: list[Completion] = []
        for first in range(0, len(prompts), self.graphs.batch):
            group = slice(first, first + self.graphs.batch)
            shown = None if on_text is None else _shifted(first, on_text)
            heard = None if on_tokens is None else _padded(first, len(prompts), on_tokens)
            with self._watched():
                completions += self._generate_group(prompts[group], each[group], shown, heard, reuse_prefix)
            if completions[len(completions) - 1].finish_reason == "interrupted":
                break
        return completions

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell the observer, if there is one, of whatever goes wrong inside."""
        try:
            yield
        except Exception as error:
            if self.graphs.observer is not None:
                self.graphs.observer.fail(error)
            raise

    def check_prompt(self, prompt: Sequence[int], options: GenerationOptions) -> None:
        """Refuse a prompt that cannot be continued; compiles nothing.

        Raises:
            UserError: see ``generate``.
        """
        with self._watched():
            if not prompt:
                raise UserError("the prompt is empty; expected at least one token: write some text.")
            if len(prompt) >= self.graphs.capacity and options.max_new_tokens > 0:
                raise UserError(
                    f"the prompt has {len(prompt)} tokens, which leaves no room for an answer in "
                    f"model.max_length={self.graphs.capacity}: shorten it or raise model.max_length."
                )
            highest = self.graphs.vocab_size - 1
            outside = [token for token in prompt if not 0 <= token <= highest]
            if outside:
                raise UserError(
                    f"the prompt holds the token id {outside[0]}, outside "
                    f"the model's 0..{highest}: is the tokenizer that of another model?"
                )

    def _generate_group(
        self,
        prompts: Sequence[Sequence[int]],
        options: Sequence[GenerationOptions],
        on_text: OnText | None,
        on_tokens: OnTokens | None,
        reuse_prefix: bool,
    ) -> list[Completion]:
        run, observer = _Run(self, prompts, options, on_text), self.graphs.observer
        if observer is not None:
            observer.begin(prompts, options)
        if any(answer.finish_reason is None for answer in run.answers):
            self._warm_up(options)
            try:
                run.read_prompts(reuse_prefix)
                while run.active.any():
                    told = [len(answer.token_ids) for answer in run.answers]
                    run.cycle()
                    if on_tokens is not None:
                        news = zip(run.answers, told, strict=True)
                        on_tokens([answer.token_ids[count:] for answer, count in news])
            except KeyboardInterrupt:
                run.interrupt()
        completions = run.completions()
        if observer is not None:
            observer.end(*run.committed(), completions)
        return completions

    def _controls(self, options: Sequence[GenerationOptions]) -> tuple[Tensor, Tensor]:
        """Sampling numbers ``[B, 15]`` and the uniform of every position ``[B, P]``, on the device.

        Sequences beyond ``options`` are idle: anything valid will do for them.
        """
        samplings = [each.sampling for each in options]
        samplings += [samplings[0]] * (self.graphs.batch - len(samplings))
        tables = np.stack([uniform_table(each.seed, self.graphs.positions) for each in samplings])
        return Tensor(params_tensor(samplings)), Tensor(tables)


class _Run:
    """One group of prompts on their way through the caches."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        options: Sequence[GenerationOptions],
        on_text: OnText | None,
    ) -> None:
        graphs, self._engine, self._greedy = engine.graphs, engine, _plain(options)
        idle = graphs.batch - len(prompts)
        self._prompts = [list(prompt) for prompt in prompts]
        self._sequences = [*(list(prompt) for prompt in prompts), *([0] for _ in range(idle))]
        self._penalised = [*(each.sampling.penalised for each in options), *([] for _ in range(idle))]
        self.answers = [
            Answer(
                engine.tokenizer,
                wanted,
                min(wanted.max_new_tokens, max(0, graphs.capacity - len(prompt))),
                None if on_text is None else functools.partial(on_text, index),
            )
            for index, (prompt, wanted) in enumerate(zip(prompts, options, strict=True))
        ]
        self.active = np.array([a.finish_reason is None for a in self.answers] + [False] * idle)
        self._n = np.array([len(sequence) - 1 for sequence in self._sequences], np.int32)
        self._reused = np.zeros(graphs.batch, np.int32)
        self._accepted: list[list[int]] = [[] for _ in self.answers]
        self._controls = engine._controls(options)
        self._state = graphs.initial_state()
        self._begin = self._decode_begin = time.perf_counter()
        self._ends = [self._begin for _ in self.answers]

    def read_prompts(self, reuse_prefix: bool) -> None:
        """Prefill all but the last token of every prompt, chunk by chunk."""
        self._begin = time.perf_counter()
        engine, graphs = self._engine, self._engine.graphs
        at = np.zeros(graphs.batch, np.int32)
        for row, cached in enumerate(engine._cached):
            if reuse_prefix:
                # One position is read again: it gives the drafter the token that follows it now.
                at[row] = max(0, min(common_prefix(cached, self._sequences[row]), self._n[row]) - 1)
            engine._cached[row] = cached[: at[row]]
        self._reused = at.copy()
        penalised = [[*s, *p] for s, p in zip(self._sequences, self._penalised, strict=True)]
        graphs.start_request(penalised)
        end = np.where(self.active, self._n, at)
        for window, start, count in windows(self._sequences, at, end, graphs.chunk):
            self._state = graphs.prefill()(Tensor(window), Tensor(start), Tensor(count), self._state)
            for row, length in enumerate(start + count):
                engine._cached[row] = self._sequences[row][:length]
        ms.runtime.synchronize()  # a device runs behind the host: its time belongs to the prefill
        self._decode_begin = time.perf_counter()
        if graphs.observer is not None:
            graphs.observer.read(self._reused, self._decode_begin - self._begin)

    def cycle(self) -> None:
        """Run one cycle, read its report and hand the tokens to their answers."""
        engine = self._engine
        roots = np.array(
            [sequence[n] for sequence, n in zip(self._sequences, self._n, strict=True)], np.int32
        )
        report, self._state = engine.graphs.cycle(self._greedy)(
            Tensor(roots), Tensor(self._n), Tensor(self.active), *self._controls, self._state
        )
        report = report.asnumpy()
        now = time.perf_counter()
        for row in np.flatnonzero(self.active):
            if report[row, FAULT] != HEALTHY:
                engine.graphs.clear()
                engine._cached = [[] for _ in engine._cached]
                whose = "model" if report[row, FAULT] == TEACHER_NOT_FINITE else "drafter"
                raise UserError(
                    f"the {whose}'s logits are not finite (NaN or infinity) after {self._n[row] + 1} tokens "
                    f"in model.dtype={engine._dtype}: use float32 or bfloat16, or check its weights."
                )
            count = int(report[row, COUNT])
            emitted = report[row, TOKENS : TOKENS + count].tolist()
            self._sequences[row] += emitted
            self._n[row] += count
            engine._cached[row] = self._sequences[row][: self._n[row]]
            self._accepted[row].append(count - 1)
            self.answers[row].take(emitted)
            self._ends[row] = now
            self.active[row] = self.answers[row].finish_reason is None

    def interrupt(self) -> None:
        """End what is unfinished, keeping what was produced."""
        for answer in self.answers:
            answer.end("interrupted")

    def committed(self) -> tuple[list[list[int]], np.ndarray]:
        """All B sequences, and how many tokens of each are committed, ``[B]``."""
        return self._sequences, self._n

    def completions(self) -> list[Completion]:
        """The finished answers, in the order of the prompts."""
        return [self._completion(row) for row in range(len(self.answers))]

    def _completion(self, row: int) -> Completion:
        engine, answer, graphs = self._engine, self.answers[row], self._engine.graphs
        decode = self._ends[row] - self._decode_begin if answer.token_ids else 0.0
        first = answer.first_token_at
        return Completion(
            text=answer.text,
            token_ids=tuple(answer.token_ids),
            prompt_tokens=len(self._prompts[row]),
            reused_tokens=int(self._reused[row]),
            finish_reason=answer.finish_reason or "interrupted",
            drafter=graphs.drafter,
            kernels=graphs.kernels,
            mode=graphs.mode,
            cycles=len(self._accepted[row]),
            accept_L=None if graphs.drafter == "none" else tuple(self._accepted[row]),
            seconds=Seconds(
                engine.load_seconds,
                engine.compile_seconds,
                self._decode_begin - self._begin,
                decode,
            ),
            time_to_first_token=None if first is None else first - self._begin,
            tokens_per_second=len(answer.token_ids) / decode if decode > 0 else None,
        )


def _plain(options: Sequence[GenerationOptions]) -> bool:
    """Whether the graph without sampling will do for all: argmax of the logits as they are."""
    return all(each.sampling.plain for each in options)


def _shifted(first: int, on_text: OnText) -> OnText:
    """``on_text`` for a group that begins at prompt ``first``."""
    return lambda index, piece: on_text(first + index, piece)


def _padded(first: int, total: int, on_tokens: OnTokens) -> OnTokens:
    """``on_tokens`` for a group that begins at prompt ``first`` of ``total``: the others have no news."""

    def told(news: list[list[int]]) -> None:
        rest = total - first - len(news)
        on_tokens([*([] for _ in range(first)), *news, *([] for _ in range(rest))])

    return told


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length
