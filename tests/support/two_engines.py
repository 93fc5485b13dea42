"""One speculating engine and its answers, for a process beside another."""

from support import tiny, tiny_engine

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.tree.shape import TreeShape

SHAPE = TreeShape(6, 3, 3)


OPTIONS = [GenerationOptions(12, SamplingParams(temperature=t, seed=3), ignore_eos=True) for t in (0.0, 1.0)]


PROMPTS = tiny_engine.prompts(9, 4, seed=5)


def answers(engine):
    """Tokens for every prompt, greedy and sampled."""
    return [list(completion.token_ids) for each in OPTIONS for completion in engine.generate(PROMPTS, each)]


def speculating():
    return tiny_engine.eagle(tiny.make("llama", seed=3), SHAPE, acceptance=0.6)
