"""The decoders that are compared: our engine, transformers and llama.cpp, each behind the same two calls.

Every one lives in a process of its own (`worker`): the thread pools of MindSpore, torch and llama.cpp
would fight for the cores. The libraries are imported when a model is made and not before.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

_NEVER = -1
PREFILL_ROWS = 512  # llama.cpp reads prompts so many tokens at a time


@dataclass(frozen=True)
class Timing:
    """One greedy answer, in seconds from the moment that it was asked for.

    Attributes:
        token_ids: the answer.
        first: when the first tokens were there; burst: how many they were.
        total: when the last ones were there.
    """

    token_ids: tuple[int, ...]
    first: float
    burst: int
    total: float

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first arrival; None if nothing came later."""
        later = len(self.token_ids) - self.burst
        return later / (self.total - self.first) if later > 0 and self.total > self.first else None


class PeerModel(Protocol):
    """A loaded model.

    Attributes:
        facts: versions and whatever else says how it computes.
    """

    facts: dict[str, str]

    def generate(self, prompt: Sequence[int], count: int) -> Timing:
        """Continue a prompt greedily by ``count`` tokens, end-of-sequence tokens included and passed over."""


class Arrivals:
    """Takes tokens as they come and notes when; transformers knows it as a streamer."""

    def __init__(self, count: int) -> None:
        """Expect ``count`` tokens: a speculating peer may deliver more, which are dropped."""
        self._begin, self._count = time.perf_counter(), count
        self._tokens: list[int] = []
        self._first: tuple[float, int] | None = None
        self._last = 0.0

    def take(self, tokens: Iterable[int]) -> None:
        """Note tokens that are there now."""
        self._last = time.perf_counter() - self._begin
        self._tokens += tokens
        if self._first is None:
            self._first = (self._last, min(len(self._tokens), self._count))

    def timing(self) -> Timing:
        """What was noted.

        Raises:
            RuntimeError: fewer tokens than expected.
        """
        if self._first is None or len(self._tokens) < self._count:
            raise RuntimeError(f"{len(self._tokens)} tokens came, {self._count} were asked for")
        return Timing(tuple(self._tokens[: self._count]), *self._first, self._last)


class EngineModel:
    """Our own engine, with the drafter that its configuration names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Load and compile; ``config`` is the JSON form of a `Config`."""
        from ms_eagle.config.sections import Config
        from ms_eagle.engine.requests import GenerationOptions
        from ms_eagle.loading import load_engine

        self._engine = load_engine(Config.model_validate(config))
        self._options = lambda count: GenerationOptions(max_new_tokens=count, ignore_eos=True)
        self._engine.warm_up(self._options(1))
        graphs = self._engine.graphs
        self.facts = {
            "kernels": graphs.facts.kernels,
            "drafter": graphs.facts.drafter,
            **versions("mindspore"),
        }

    def generate(self, prompt: Sequence[int], count: int) -> Timing:
        """See `PeerModel`."""
        (done,) = self._engine.generate([list(prompt)], self._options(count))
        burst = 1 if done.accept_L is None else 1 + done.accept_L[0]
        total = done.seconds.prefill + done.seconds.decode
        return Timing(done.token_ids, done.time_to_first_token, min(burst, count), total)


class _Streamer:
    """Hands what transformers generates to `Arrivals`, without the prompt, which comes first."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._prompt = arrivals, True

    def put(self, values: Any) -> None:
        if not self._prompt:
            self._arrivals.take(values.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


class TransformersModel:
    """transformers' ``generate`` in float32, with scaled-dot-product attention, its default."""

    def __init__(
        self,
        directory: str,
        threads: int,
        *,
        capacity: int | None = None,
        compiled: bool = False,
        lookup: int | None = None,
        assistant: str | None = None,
    ) -> None:
        """Load a model.

        Args:
            directory: a Hugging Face model directory; ``assistant``: one of a smaller model that drafts.
            threads: how many compute.
            capacity: tokens of a static cache; None uses the dynamic one.
            compiled: compile the step of one token with torch.compile; needs ``capacity``.
            lookup: draft so many tokens by looking the last ones up in the text so far.
        """
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self._torch, self._transformers = torch, transformers
        self._model = self._load(directory)
        self._options: dict[str, Any] = {}
        self._cache = None
        if capacity is not None:
            self._cache = transformers.StaticCache(config=self._model.config, max_cache_len=capacity)
            self._options["past_key_values"] = self._cache
        if compiled:
            compilation = transformers.CompileConfig(mode="default")
            compilation._compile_all_devices = True  # without it a CPU is passed over in silence
            self._options["compile_config"] = compilation
        if lookup is not None:
            self._options["prompt_lookup_num_tokens"] = lookup
        if assistant is not None:
            self._options["assistant_model"] = self._load(assistant)
        self.facts = versions("transformers", "torch")

    def _load(self, directory: str) -> Any:
        model = self._transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=self._torch.float32, local_files_only=True
        ).eval()
        # The repository's own defaults sample, penalise or stop; here nothing does. Prompt lookup needs an
        # end-of-sequence id: this one never comes.
        model.generation_config = self._transformers.GenerationConfig(
            do_sample=False, pad_token_id=0, eos_token_id=_NEVER
        )
        return model

    def generate(self, prompt: Sequence[int], count: int) -> Timing:
        """See `PeerModel`."""
        tokens = self._torch.tensor([list(prompt)])
        if self._cache is not None:
            self._cache.reset()
        arrivals = Arrivals(count)
        self._model.generate(
            tokens,
            attention_mask=self._torch.ones_like(tokens),
            max_new_tokens=count,
            streamer=_Streamer(arrivals),
            **self._options,
        )
        return arrivals.timing()

    def margin(self, tokens: Sequence[int], one: int, other: int) -> float:
        """How far apart the logits of two tokens are after ``tokens``."""
        with self._torch.no_grad():
            logits = self._model(self._torch.tensor([list(tokens)])).logits[0, len(tokens) - 1]
        return abs(float(logits[one] - logits[other]))


class LlamaCppModel:
    """llama.cpp through llama-cpp-python, with weights and cache in float32."""

    def __init__(self, path: str, threads: int, capacity: int) -> None:
        """Load the GGUF file ``path`` with room for ``capacity`` tokens."""
        import llama_cpp

        self._model = llama_cpp.Llama(
            path,
            n_ctx=capacity,
            n_batch=PREFILL_ROWS,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )
        features = llama_cpp.llama_print_system_info().decode().replace(" = 1", "").strip(" |")
        self.facts = {**versions("llama-cpp-python"), "build": features}

    def generate(self, prompt: Sequence[int], count: int) -> Timing:
        """See `PeerModel`."""
        arrivals = Arrivals(count)
        self._model.reset()  # else the part of the prompt that is in its cache already would not be read
        stream = self._model.generate(list(prompt), temp=0.0, repeat_penalty=1.0)
        for _ in range(count):
            arrivals.take([next(stream)])
        stream.close()
        return arrivals.timing()


KINDS: dict[str, Callable[..., PeerModel]] = {
    "engine": EngineModel,
    "transformers": TransformersModel,
    "llama.cpp": LlamaCppModel,
}


def versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages."""
    return {name: metadata.version(name) for name in packages}
