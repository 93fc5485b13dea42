"""The self-test of an installation: kernels against each other, losslessness, where the time goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import nn

from ms_eagle.backends import parity as attention_parity
from ms_eagle.backends.parity import Case, Found, NativeAttention
from ms_eagle.benchmark.engines import Pair
from ms_eagle.benchmark.identity import machine
from ms_eagle.benchmark.plan import Question
from ms_eagle.benchmark.profile import profile
from ms_eagle.config.sections import Config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.kernels.fused import FusedAttention
from ms_eagle.kernels.library import load
from ms_eagle.kernels.operators import Operators
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress
from ms_eagle.system.provenance import manifest

SCHEMA = 1
PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Count from one to ten.",
    "你好",
)
_TOKENS = 32
_HALVES = (ms.float16, ms.bfloat16)
Kernel = Callable[[Case], nn.Cell]


@dataclass(frozen=True)
class Outcome:
    """What a self-test found.

    Attributes:
        report: all of it, as JSON values.
        lines: for a terminal.
    """

    report: dict[str, Any]
    lines: list[str]

    @property
    def passed(self) -> bool:
        """Whether every part did."""
        return bool(self.report["passed"])


def selftest(config: Config, progress: Progress) -> Outcome:
    """Test kernels, losslessness and stages with the model of ``config``.

    Raises:
        UserError: the model cannot be loaded, or there is no drafter.
    """
    pair = Pair.load(config, progress)
    name = ms.get_context("device_target")
    parity = kernel_parity(name, config.execution.threads, progress)
    lossless = check_lossless(pair, config, progress)
    questions = [
        Question(f"selftest:{number}", "selftest", "selftest", (text,), "selftest", number)
        for number, text in enumerate(PROMPTS)
    ]
    stages = profile(pair, config, questions, 2, progress)
    failed = [case for case in parity["cases"] if not case["passed"]]
    passed = not failed and not lossless["different"]
    report = {
        "schema": SCHEMA,
        "passed": passed,
        **manifest(config.model_dump(mode="json"), {"device": name, "machine": machine()}),
        "kernels": pair.speculative.graphs.facts.kernels,
        "kernel_parity": parity,
        "lossless": lossless,
        "stage_ms": stages["stage_ms"],
        "profile": stages,
    }
    return Outcome(report, _lines(report, failed))


def kernel_parity(name: str, threads: int | None, progress: Progress) -> dict[str, Any]:
    """The device's best attention kernel against eager attention, over shapes, formats and KV lengths."""
    kernel, make, dtypes = _kernel(name, threads)
    results: list[Found] = []
    if make is not None:
        pairs = [(case, dtype) for case in attention_parity.cases() for dtype in dtypes]
        with progress.steps(f"comparing {kernel} with eager attention", len(pairs)) as step:
            for case, dtype in pairs:
                results.append(attention_parity.compare(make(case), case, dtype))
                step.advance()
    return {"kernel": kernel, "reference": "eager", "cases": [each.record() for each in results]}


def _kernel(name: str, threads: int | None) -> tuple[str, Kernel | None, tuple[ms.Type, ...]]:
    """Name and maker of the kernel to test, and its number formats."""
    if name == "Ascend":
        return "fused", lambda case: FusedAttention(case.heads, case.head_dim), _HALVES
    try:
        operators = Operators(load(threads))
    except NativeUnavailable as error:
        return f"none: {error}", None, ()
    return "native", lambda case: NativeAttention(operators, case.slots), (ms.float32,)


def check_lossless(pair: Pair, config: Config, progress: Progress) -> dict[str, Any]:
    """Answers with and without speculation, greedy and sampled.

    Returns:
        ``answers``: how many were compared; ``different``: each that differs, with its first difference and
        how far the teacher's best logit lies above its second there.
    """
    sampled = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
    kinds = {"greedy": SamplingParams(), "sampled": sampled}
    thinking, different = config.model.thinking, []
    with progress.steps("comparing answers", len(PROMPTS) * len(kinds)) as step:
        for kind, sampling in kinds.items():
            options = GenerationOptions(_TOKENS, sampling, ignore_eos=True)
            for text in PROMPTS:
                prompt = pair.template.encode(
                    [{"role": "user", "content": text}], pair.teacher.tokenizer, thinking=thinking
                )
                alone = pair.alone([prompt], options)[0].completion.token_ids
                drafted = pair.speculate([prompt], options, None)[0].completion.token_ids
                if alone != drafted:
                    at = next(i for i, (a, b) in enumerate(zip(alone, drafted, strict=False)) if a != b)
                    different.append(
                        {
                            "prompt": text,
                            "kind": kind,
                            "at": at,
                            "margin": pair.margin([*prompt, *alone[:at]]) if kind == "greedy" else None,
                        }
                    )
                step.advance()
    return {"answers": len(PROMPTS) * len(kinds), "tokens_each": _TOKENS, "different": different}


def _lines(report: dict[str, Any], failed: list[dict[str, Any]]) -> list[str]:
    parity, lossless = report["kernel_parity"], report["lossless"]
    lines = [
        f"device            {report['device']}, kernels {report['kernels']}",
        f"kernel parity     {parity['kernel']} against eager: {len(parity['cases'])} cases, "
        f"{len(failed)} differ",
        f"lossless          {lossless['answers']} answers, {len(lossless['different'])} differ",
        f"stages            {', '.join(f'{k} {v:.2f} ms' for k, v in report['stage_ms'].items())}",
        f"result            {'passed' if report['passed'] else 'FAILED'}",
    ]
    lines += [f"  differs: {case}" for case in failed[:3]]
    return lines + [f"  differs: {answer}" for answer in lossless["different"][:3]]
