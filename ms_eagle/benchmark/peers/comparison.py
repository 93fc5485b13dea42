"""One comparison from a configuration: model, prompts and peers in, the record of `report` out."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_eagle.benchmark.peers.catalogue import Peer, benchmark_config, cache_directory, choose, peers
from ms_eagle.benchmark.peers.process import PeerProcess
from ms_eagle.benchmark.peers.report import record
from ms_eagle.benchmark.peers.timing import run
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.system import machine
from ms_eagle.system.progress import Progress
from ms_eagle.system.provenance import manifest
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.template import load_template

# A question, a task with a long answer, code, and two whose answers repeat what the prompt says.
PROMPTS = (
    ("question", "Why is the sky blue?"),
    ("story", "Write a short story about a lighthouse keeper who finds a letter in a bottle."),
    ("code", "Write a Python function that returns the n-th Fibonacci number, and explain how it works."),
    (
        "summary",
        "Summarise in one sentence: The harbour of the old town was built in 1742. In the winter of 1799 a"
        " storm broke its mole, and for twelve years the fishermen had to haul their boats onto the beach."
        " The mole that stands today was finished in 1811 with granite from the quarry behind the church.",
    ),
    (
        "edit",
        "Repeat this list with every price raised by one: apples 3, bread 4, cheese 9, dates 7, eggs 2,"
        " flour 5, grapes 6, honey 8.",
    ),
)
_MEMORY_MARGIN = 1.25  # of the weights: caches, libraries, activations


@dataclass(frozen=True)
class Plan:
    """How to compare.

    Attributes:
        new_tokens: length of every answer; rounds: how often each is timed.
        names: which peers; None takes all that are not optional.
        assistant: Hugging Face directory of a smaller model for transformers' assisted generation.
        raw: send prompts without a chat template.
        timeout: seconds that loading, or one answer, may take.
        verbose: show what the libraries print.
    """

    new_tokens: int
    rounds: int
    threads: int
    names: list[str] | None = None
    assistant: str | None = None
    raw: bool = False
    timeout: float = 600.0
    verbose: bool = False


def compare(
    config: Config, texts: Sequence[tuple[str, str]], plan: Plan, progress: Progress
) -> dict[str, Any]:
    """Run the comparison.

    Args:
        config: names the model and, if there is one, the drafter.
        texts: name and text of every prompt.
        plan: how to compare.
        progress: shows the run, and is told at once if the machine is busy.

    Raises:
        UserError: a model, a prompt or a choice of peers that cannot work, or too little memory.
    """
    config = benchmark_config(config, plan.threads)
    place = None if config.model.cache_dir is None else cache_directory(config)
    files = sources.resolve(config.model.source, cache_dir=place, progress=progress, widened=True)
    prompts = _encode(config, files.directory, texts, plan)
    capacity = max(map(len, prompts)) + plan.new_tokens
    chosen = choose(peers(config, files.directory, capacity, plan.assistant), plan.names)
    _check_memory(files.directory, chosen)
    load_before, busy = machine.load_average(), machine.busy()
    if busy is not None and busy > machine.IDLE:
        progress.note(f"the machine is not idle: others use {100 * busy:.0f} % of the CPU")
    watch = machine.Watch()
    results = run(
        chosen,
        prompts,
        new_tokens=plan.new_tokens,
        rounds=plan.rounds,
        start=functools.partial(PeerProcess, plan.timeout, plan.verbose),
        progress=progress,
    )
    common = {
        "model": files.origin,
        "threads": plan.threads,
        "new_tokens": plan.new_tokens,
        "rounds": plan.rounds,
        "prompts": [
            {"name": name, "tokens": len(prompt)} for (name, _), prompt in zip(texts, prompts, strict=True)
        ],
        "load_before": load_before,
        "load_after": machine.load_average(),
        "elsewhere": watch.elsewhere(),
    }
    return record(results, common) | {"manifest": manifest(config.model_dump(mode="json"), {})}


def _encode(config: Config, directory: Path, texts: Sequence[tuple[str, str]], plan: Plan) -> list[list[int]]:
    """Token ids of every prompt, the same for all peers."""
    tokenizer = load_tokenizer(directory)
    template = None if plan.raw else load_template(directory, config.model.chat_template)
    system, length = config.model.system_prompt, config.model.max_length
    opening = [] if system is None else [{"role": "system", "content": system}]
    prompts = []
    for name, text in texts:
        if template is None:
            prompt = tokenizer.encode(text)
        else:
            turns = [*opening, {"role": "user", "content": text}]
            prompt = template.encode(turns, tokenizer, thinking=config.model.thinking)
        if len(prompt) + plan.new_tokens > length:
            raise UserError(
                f"prompt {name} has {len(prompt)} tokens, which with {plan.new_tokens} new ones are more "
                f"than model.max_length={length}: raise it, or lower --new-tokens"
            )
        prompts.append(prompt)
    return prompts


def _check_memory(directory: Path, chosen: Sequence[Peer]) -> None:
    """Refuse what cannot be held at once: all peers stay loaded, for their turns to be interleaved."""
    decoder = DecoderConfig.from_hf(Checkpoint.open(directory).config)
    weights = 4 * sum(map(math.prod, decoder.tensor_shapes().values()))
    count = sum(peer.missing() is None for peer in chosen)
    needed, available = _MEMORY_MARGIN * weights * count, machine.available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{count} peers need about {needed / 1e9:.1f} GB together, {available / 1e9:.1f} GB are "
            "available: choose fewer with --peers"
        )
