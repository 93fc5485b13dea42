"""Whole runs of random engines: every speculative answer against the teacher's own.

A case is drawn from two numbers alone, a seed and the case's own number, so that a failure is repeated by
naming them. It is a random teacher and drafter, tree shapes, batch, chunk, capacity and commit, and requests
with options of their own that arrive, follow each other and are cancelled at random moments.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from ms_eagle.checkpoints.random_weights import random_tensor
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.drafters.eagle3.blueprint import HeadBlueprint
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.scripted import ScriptedDrafter
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, GenerationOptions, Request
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend
from ms_eagle.models.commit import CloneReorder, FullReorder
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.quantisation import Asked, stored_as
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Weight
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.text.tokenizer import Tokenizer
from ms_eagle.tree.shape import TreeShape, candidates

_VOCABULARY = 96
_REQUESTS = 24  # of one engine, whose graphs take seconds to compile
_FAMILIES: tuple[dict[str, Any], ...] = (
    {"architecture": "LlamaForCausalLM"},
    {"architecture": "LlamaForCausalLM", "tied": True},
    {"architecture": "LlamaForCausalLM", "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    {"architecture": "Qwen2ForCausalLM", "qkv_bias": True},
    {"architecture": "Qwen3ForCausalLM", "qk_norm": True},
)
_WEIGHTS: tuple[Asked, ...] = ("float32", "float32", "int8", "int4")
_SCALINGS: tuple[tuple[str, dict[str, float]], ...] = (
    ("default", {}),
    ("linear", {"factor": 2.0}),
    ("yarn", {"factor": 4.0}),
)


class Characters(Tokenizer):
    """Token ``t`` is the character ``chr(t)``; 2 ends a sequence."""

    vocab_size, bos_id, eos_ids, pad_id = _VOCABULARY, 1, (2,), 0
    special_ids, strips_leading_space = frozenset({0, 1, 2}), False

    def token_bytes(self, token_id: int) -> bytes:
        """See ``Tokenizer``."""
        return bytes([token_id])

    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        return list(text.encode())


@dataclass(frozen=True)
class Case:
    """An engine and what is asked of it.

    Attributes:
        seed, number: all else follows from them.
        decoder: of the teacher.
        tiers: shapes of the trees; the engine takes any of them before each cycle.
        batch, chunk, capacity: see ``Sizes``.
        acceptance: of a scripted drafter; None drafts with a head of random weights.
        confidence: see ``log_confidence``.
        commit: ``fast``, ``full`` or ``clone``.
        taps: blocks that the head reads.
        weights: the format of all matrices that can have it.
    """

    seed: int
    number: int
    decoder: DecoderConfig
    tiers: tuple[TreeShape, ...]
    batch: int
    chunk: int
    capacity: int
    acceptance: float | None
    confidence: float
    commit: str
    taps: tuple[int, ...]
    weights: Asked

    def rng(self, purpose: int) -> np.random.Generator:
        """Random numbers that follow from the case, others for each purpose."""
        return np.random.default_rng((self.seed, self.number, purpose))


@dataclass(frozen=True)
class Fault:
    """What a case violated: one line, or a traceback."""

    case: Case
    what: str

    def report(self, kernels: str) -> str:
        """The fault, the case, and the command that repeats it."""
        command = f"python tools/fuzz.py --seed {self.case.seed} --first {self.case.number} --engines 1"
        return f"{self.what}\n{self.case}\nagain: {command} --kernels {kernels}"


def draw_case(seed: int, number: int) -> Case:
    """The case of a number."""
    rng = np.random.default_rng((seed, number, 0))
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    head_dim, layers = int(rng.choice((4, 8, 16))), int(rng.integers(1, 4))
    scaling, numbers = _SCALINGS[int(rng.integers(len(_SCALINGS)))]
    family = {"tied": False, **_FAMILIES[int(rng.integers(len(_FAMILIES)))]}
    decoder = DecoderConfig(
        vocab_size=_VOCABULARY,
        hidden_size=int(rng.choice((16, 40, 64, 96))),
        intermediate_size=int(rng.choice((24, 56, 64, 96))),
        num_layers=layers,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope=RopeConfig(head_dim, 1e4, scaling, numbers, 512),
        **family,
    )
    return Case(
        seed,
        number,
        decoder,
        tiers=tuple(dict.fromkeys(_draw_shape(rng) for _ in range(int(rng.integers(1, 3))))),
        batch=int(rng.integers(1, 4)),
        chunk=int(rng.integers(1, 17)),
        capacity=int(rng.integers(8, 73)),
        acceptance=None if rng.random() < 0.25 else float(rng.choice((0.0, 0.3, 0.7, 0.95, 1.0))),
        confidence=float(rng.choice((0.0, 0.0, 0.05, 0.5))),
        commit=str(rng.choice(("fast", "fast", "full", "clone"))),
        taps=tuple(sorted(rng.choice(layers, int(rng.integers(1, layers + 1)), replace=False).tolist())),
        weights=_WEIGHTS[int(rng.integers(len(_WEIGHTS)))],
    )


def _draw_shape(rng: np.random.Generator) -> TreeShape:
    depth, branch = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    return TreeShape(int(rng.integers(1, min(20, candidates(depth, branch)) + 1)), depth, branch)


def build(case: Case, backend: Backend, reorder: Callable[[KVCache], nn.Cell] | None = None) -> Engine:
    """The engine of a case.

    Args:
        case: what to build.
        backend: what teacher and drafter are made of.
        reorder: commits in the place of the case's own, to see what a wrong one does.
    """
    rng, decoder = case.rng(1), case.decoder
    # Wide enough that an answer does not settle into one token.
    tensors = {
        name: random_tensor(name, shape, rng, scale=0.3) for name, shape in decoder.tensor_shapes().items()
    }
    sizes = Sizes(case.batch, case.chunk, case.capacity, case.tiers)
    teacher = Teacher(
        decoder,
        lambda name: stored_as(Weight.of(tensors[name]), case.weights),
        backend,
        batch=case.batch,
        slots=sizes.slots,
        positions=sizes.positions,
        taps=case.taps,
    )
    own = HeadConfig.like(decoder, "random", draft_vocab_size=_VOCABULARY // 2, taps=case.taps)
    weights = {
        name: random_tensor(name, shape, rng, scale=0.3) for name, shape in own.tensor_shapes().items()
    }
    ids = np.sort(rng.choice(_VOCABULARY, own.draft_vocab_size, replace=False)).astype(np.int32)
    first = case.tiers[0]
    drafter = HeadBlueprint(Head(own, weights, ids, {}, weights=case.weights)).build(
        teacher, backend, first, slots=sizes.draft_slots, positions=sizes.draft_positions
    )
    if case.acceptance is not None:
        coins = (rng.random(sizes.positions) < case.acceptance).astype(np.int32)
        drafter = ScriptedDrafter(drafter.head, first.depth, first.branch, _VOCABULARY, coins, drafter.best)
    commits: dict[str, Callable[[KVCache], nn.Cell]] = {
        "fast": backend.reorder,
        "full": FullReorder,
        "clone": lambda cache: CloneReorder(cache, backend.reorder(cache)),
    }
    graphs = Graphs(
        teacher,
        drafter,
        sizes,
        name="synthetic" if drafter.scripted else "eagle3",
        kernels=backend.name,
        dtype="float32",
        confidence=case.confidence,
        reorder=reorder or commits[case.commit],
    )
    choices = case.rng(2)
    return Engine(
        graphs,
        Characters(),
        directory=Path(),
        choose_tier=lambda: case.tiers[int(choices.integers(len(case.tiers)))],
    )


def check(case: Case, engine: Engine) -> tuple[int, list[str]]:
    """Ask everything of a case's engine.

    Returns:
        how many speculative cycles ran, and what was wrong.

    Raises:
        Exception: whatever the engine raises; nothing that is asked may make it.
    """
    rng, teacher = case.rng(3), engine.alone()
    requests: list[Request] = []
    expected: list[Completion] = []
    while len(requests) < _REQUESTS:  # some go on from earlier ones, whose answers must be known
        group = [_draw_request(rng, case, requests, expected) for _ in range(case.batch)]
        expected += teacher.run(group)
        requests += group
    scripts = [[*r.prompt, *c.token_ids] for r, c in zip(requests, expected, strict=True)]
    if engine.graphs.facts.scripted:
        requests = [replace(r, script=script) for r, script in zip(requests, scripts, strict=True)]
    completions, pieces = _serve(rng, engine, requests)
    faults = []
    for number, (want, got) in enumerate(zip(expected, completions, strict=True)):
        whole = got.finish_reason != "interrupted"
        tokens = want.token_ids if whole else want.token_ids[: len(got.token_ids)]
        accepted = got.accept_L or ()
        for name, right, found in (
            ("tokens", tokens, got.token_ids),
            ("finish reason", want.finish_reason if whole else "interrupted", got.finish_reason),
            ("text", want.text if whole else got.text, got.text),
            ("streamed text", got.text, "".join(pieces[number])),
            ("cycles", got.cycles, len(accepted)),
        ):
            if right != found:
                faults.append(f"request {number}: {name} {found!r}; expected {right!r}: {requests[number]}")
        if not 0 <= len(got.token_ids) <= sum(accepted) + got.cycles:
            faults.append(f"request {number}: {len(got.token_ids)} tokens of cycles that accepted {accepted}")
    return sum(completion.cycles for completion in completions), faults


def _draw_request(
    rng: np.random.Generator, case: Case, requests: Sequence[Request], expected: Sequence[Completion]
) -> Request:
    longest = case.capacity - 1
    prompt = rng.integers(3, _VOCABULARY, int(rng.integers(1, longest + 1))).tolist()
    follows = bool(requests) and rng.random() < 0.4
    if follows:  # the next turn of a dialog: what came before, and a little more
        before = int(rng.integers(len(requests)))
        so_far = [*requests[before].prompt, *expected[before].token_ids, *prompt[: int(rng.integers(1, 6))]]
        follows = len(so_far) <= longest
        prompt = so_far if follows else prompt
    ends = rng.integers(3, _VOCABULARY, int(rng.integers(0, 5))).tolist() if rng.random() < 0.5 else None
    sampling = SamplingParams()
    if rng.random() < 0.6:
        sampling = SamplingParams(
            temperature=float(rng.choice((0.0, 0.3, 0.8, 1.0, 2.0))),
            top_k=int(rng.choice((0, 1, 5, 40))),
            top_p=float(rng.choice((1.0, 0.9, 0.3))),
            min_p=float(rng.choice((0.0, 0.0, 0.1))),
            repetition_penalty=float(rng.choice((1.0, 1.0, 1.3, 0.8))),
            seed=int(rng.integers(1 << 32)),
            min_length=int(rng.integers(0, case.capacity)) if ends else 0,
            end_ids=tuple(ends or ()),
        )
    stop = ("".join(map(chr, rng.integers(65, 91, 1))),) if rng.random() < 0.2 else ()
    options = GenerationOptions(
        int(rng.integers(0, case.capacity + 9)),
        sampling,
        stop,
        ignore_eos=bool(rng.random() < 0.3),
        eos_ids=None if ends is None else tuple(ends),
    )
    return Request(prompt, options, reuse_prefix=follows)


def _serve(
    rng: np.random.Generator, engine: Engine, requests: Sequence[Request]
) -> tuple[list[Completion], list[list[str]]]:
    """Submit requests at random moments and cancel a few; every completion, and the pieces of its text."""
    first, submitted = 0, 0
    completions: dict[int, Completion] = {}
    pieces: list[list[str]] = [[] for _ in requests]
    while len(completions) < len(requests):
        while submitted < len(requests) and (not engine.busy or rng.random() < 0.2):
            number = engine.submit(requests[submitted])
            first = number if submitted == 0 else first
            submitted += 1
        news = engine.step()
        running = [n for n in range(submitted) if n not in completions and pieces[n]]
        if running and rng.random() < 0.01:
            news += engine.cancel([first + int(rng.choice(running))])
        for each in news:
            pieces[each.number - first].append(each.text)
            if each.completion is not None:
                completions[each.number - first] = each.completion
    return [completions[n] for n in range(len(requests))], pieces


@dataclass(frozen=True)
class Tally:
    """What has been done so far."""

    engines: int = 0
    answers: int = 0
    cycles: int = 0


def run(
    seed: int, first: int, backend: Callable[[int], Backend], *, engines: int | None, seconds: float
) -> Iterator[tuple[Tally, Fault | None]]:
    """Check case after case.

    Args:
        seed: of all cases.
        first: number of the first case.
        backend: makes what an engine is made of, given the depth of its deepest tree.
        engines: how many cases; None goes by the time.
        seconds: no case begins later than this.

    Yields: after every case what has been done, and its fault if it has one.
    """
    tally, begin = Tally(), time.monotonic()
    while (engines is None or tally.engines < engines) and time.monotonic() - begin < seconds:
        case, cycles, fault = draw_case(seed, first + tally.engines), 0, None
        try:
            cycles, faults = check(case, build(case, backend(max(tier.depth for tier in case.tiers))))
            fault = Fault(case, "\n".join(faults)) if faults else None
        except Exception:  # noqa: BLE001 (no error is right here; all of them are reported)
            fault = Fault(case, traceback.format_exc())
        tally = Tally(tally.engines + 1, tally.answers + _REQUESTS, tally.cycles + cycles)
        yield tally, fault
