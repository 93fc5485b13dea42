"""Where the time of a cycle goes, and how it grows with the context; runs apart from the measured turns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ms_eagle.benchmark.engines import Pair
from ms_eagle.benchmark.plan import Question, first_turns
from ms_eagle.chat.session import generation_options
from ms_eagle.config.sections import Config
from ms_eagle.cycle.stages import STAGES, StagedGraphs
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.system.progress import Progress

_FIRST_CONTEXT = 64
_CYCLES = 8  # at least so many at every context length
_QUANTILES = (50, 90, 99)


def profile(
    pair: Pair, config: Config, questions: Sequence[Question], count: int, progress: Progress
) -> dict[str, Any]:
    """Profile the first turns of ``count`` questions, and prompts of growing length.

    Returns:
        ``stage_ms``: mean milliseconds of a cycle by stage; ``stage_quantiles_ms``; ``turns``, ``cycles``
        and ``cycle_ms`` of the stages run apart; ``whole_cycle_ms`` and ``teacher_cycle_ms`` of the same
        turns in one graph a cycle; ``context``: for each length, milliseconds of such cycles and of
        stages, and seconds to read the prompt.
    """
    options = generation_options(config, pair.teacher.tokenizer)
    staged = StagedEngine(pair)
    prompts = [_prompt(pair, config, question) for question in first_turns(questions, count)]
    usable = [prompt for prompt in prompts if len(prompt) < pair.performance.facts.sizes.capacity]
    with progress.steps("compiling stages"):
        staged.run(usable[:1], GenerationOptions(_CYCLES, options.sampling, ignore_eos=True))
    cycles: list[dict[str, float]] = []
    whole: list[float] = []
    alone: list[float] = []
    with progress.steps("profiling stages", len(usable)) as step:
        for prompt in usable:
            cycles += staged.run([prompt], options)
            teacher, speculative = _both(pair, prompt, options)
            whole.append(speculative)
            alone.append(teacher)
            step.advance()
    means = stage_means(cycles)
    return {
        "stage_ms": means,
        "stage_quantiles_ms": _quantiles(cycles),
        "turns": len(usable),
        "cycles": len(cycles),
        "cycle_ms": sum(means.values()),
        "whole_cycle_ms": _mean(whole),
        "teacher_cycle_ms": _mean(alone),
        "context": contexts(pair, staged, config, prompts, progress),
    }


class StagedEngine:
    """Answers with staged cycles, over the weights and caches of a pair.

    Attributes:
        graphs: the stages; engine: what runs them.
    """

    def __init__(self, pair: Pair, graphs: StagedGraphs | None = None) -> None:
        """``graphs``: those of an earlier profile of the pair, which are compiled already."""
        self._pair, self.graphs = pair, graphs or StagedGraphs(pair.performance, "profile")
        known = pair.speculative
        self.engine = Engine(self.graphs, known.tokenizer, directory=known.directory)

    def run(self, prompts: Sequence[Sequence[int]], options: GenerationOptions) -> list[dict[str, float]]:
        """Answer up to a batch of prompts; seconds by stage of every cycle."""
        requests = self._pair.requests(prompts, options)
        self.engine.warm_up(options)
        seconds: list[dict[str, float]] = []
        self.graphs.follow(lambda cycle: seconds.append(dict(cycle.watch.seconds)))
        self.graphs.restart()
        self.engine.run(requests)
        return seconds


def stage_means(cycles: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean milliseconds of each stage, over the cycles that have it."""
    return {
        stage: 1e3 * float(np.mean([cycle[stage] for cycle in cycles if stage in cycle]))
        for stage in STAGES
        if any(stage in cycle for cycle in cycles)
    }


def contexts(
    pair: Pair, staged: StagedEngine, config: Config, prompts: Sequence[Sequence[int]], progress: Progress
) -> list[dict[str, Any]]:
    """Milliseconds of a cycle after prompts of 64, 128, ... tokens, as far as the capacity goes."""
    new = _CYCLES * (pair.performance.facts.sizes.depth + 1)
    sampling = generation_options(config, pair.teacher.tokenizer).sampling
    options = GenerationOptions(new, sampling, ignore_eos=True)
    text = [token for prompt in prompts for token in prompt]
    lengths = []
    while (length := _FIRST_CONTEXT << len(lengths)) + new < pair.performance.facts.sizes.capacity:
        lengths.append(length)
    found = []
    with progress.steps("timing against context length", len(lengths)) as step:
        for length in lengths:
            prompt = (text * (length // len(text) + 1))[:length]
            alone = pair.alone([prompt], options)[0]
            speculative = pair.speculate([prompt], options, [alone])[0]
            found.append(
                {
                    "tokens": length,
                    "teacher_cycle_ms": 1e3 * alone.decode / alone.completion.cycles,
                    "cycle_ms": 1e3 * speculative.decode / speculative.completion.cycles,
                    "teacher_prefill_s": alone.prefill,
                    "prefill_s": speculative.prefill,
                    "stage_ms": stage_means(staged.run([prompt], options)),
                }
            )
            step.advance()
    return found


def _both(pair: Pair, prompt: Sequence[int], options: GenerationOptions) -> tuple[float, float]:
    """Milliseconds of a cycle of the teacher alone and of a speculative one."""
    alone = pair.alone([prompt], options)[0]
    speculative = pair.speculate([prompt], options, [alone])[0]
    each = [1e3 * answer.decode / max(1, answer.completion.cycles) for answer in (alone, speculative)]
    return each[0], each[1]


def _prompt(pair: Pair, config: Config, question: Question) -> list[int]:
    said = [] if config.model.system_prompt is None else [("system", config.model.system_prompt)]
    messages = [{"role": role, "content": text} for role, text in (*said, ("user", question.turns[0]))]
    return pair.template.encode(messages, pair.teacher.tokenizer, thinking=config.model.thinking)


def _quantiles(cycles: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        stage: {
            f"p{q}": 1e3 * float(np.percentile([c[stage] for c in cycles if stage in c], q))
            for q in _QUANTILES
        }
        for stage in stage_means(cycles)
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return float(np.mean(numbers)) if numbers else None
