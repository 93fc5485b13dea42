"""``tools/infer.py --engine mindformers``: a session whose answers come through MindFormers' pipeline."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import mindspore as ms
from mindformers import TextStreamer, build_context, pipeline
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ms_eagle.chat.conversation import Conversation
from ms_eagle.chat.report import Report
from ms_eagle.chat.session import Running, Session
from ms_eagle.config.sections import Config
from ms_eagle.engine.requests import Completion
from ms_eagle.errors import UserError
from ms_eagle.mindformers.config import EagleConfig
from ms_eagle.mindformers.model import EagleForCausalLM
from ms_eagle.mindformers.native import load as load_engine
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import ChatTemplate, load_template


class PipelineSession(Session):
    """Renders and reports as ``Session`` does; MindFormers tokenizes, generates, streams and decodes."""

    def __init__(
        self, model: EagleForCausalLM, template: ChatTemplate | None, config: Config, progress: Progress
    ) -> None:
        """Make a pipeline of the loaded model.

        Raises:
            UserError: the model has no tokenizer that transformers can read.
        """
        super().__init__(model.engine, template, config, progress)
        self._network, self._asked = model, _options(config)
        if self.options.eos_ids is not None:
            self._asked["eos_token_id"] = list(self.options.eos_ids)
        self._tokenizer = _tokenizer(model)
        os.environ.setdefault("CPU_AFFINITY", "False")  # MindFormers would bind the process to some cores
        context = {"mode": 0, "device_target": ms.get_context("device_target")}
        build_context(
            {
                "use_legacy": False,
                "run_mode": "predict",
                "use_parallel": False,
                "context": context,
                "parallel": {},
            }
        )
        self._pipeline = pipeline("text_generation", model=model, tokenizer=self._tokenizer)

    @classmethod
    def load(cls, config: Config, raw: bool, progress: Progress) -> "PipelineSession":
        """Load the model of ``config``.

        Raises:
            UserError: see ``Session.load``, and options that MindFormers does not have.
        """
        _options(config)
        described = EagleConfig.from_engine_config(config)
        model = EagleForCausalLM(described, load_engine(described, progress))
        template = None if raw else load_template(model.engine.directory, config.model.chat_template)
        return cls(model, template, config, progress)

    def conversation(self) -> Conversation:
        """Refuse: a conversation keeps what the caches hold, which a pipeline does not.

        Raises:
            UserError: always.
        """
        raise UserError("--engine mindformers answers single prompts: use --prompt, --prompts or piped text")

    def _answer_turn(self, asked: list[Running], live: Report | None, reuse_prefix: bool) -> list[Completion]:
        completions = []
        for running in asked:
            if live is not None:
                running.begin(live)
            streamer = None if live is None else _Streamer(live, self._tokenizer)
            text = self._text(running)
            special = self._special_tokens(text, self._encode(running))
            with suppress(KeyboardInterrupt):  # the completion says so
                self._pipeline(text, add_special_tokens=special, streamer=streamer, **self._asked)
            (completion,) = self._network.completions
            completions.append(completion)
            if live is not None:
                live.end(completion)
        return completions

    def _text(self, running: Running) -> str:
        """The prompt of the next turn as text."""
        if self.template is None:
            return running.dialog.turns[len(running.completions)]
        messages = running.messages(self.config.model.system_prompt)
        return self.template.render(messages, thinking=self.config.model.thinking)

    def _special_tokens(self, text: str, ids: Sequence[int]) -> bool:
        """Whether MindFormers' tokenizer is to add special tokens to read what ours read."""
        for special in (False, True):
            if self._tokenizer(text, add_special_tokens=special)["input_ids"] == list(ids):
                return special
        raise UserError(
            f"transformers reads the prompt as other tokens than ms_eagle does with the tokenizer of "
            f"{self.engine.directory}: leave out --engine mindformers."
        )


class _Streamer(TextStreamer):
    """Hands the answer's text to a report."""

    def __init__(self, report: Report, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, skip_prompt=True)
        self._report = report

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """A piece of the answer."""
        if text:
            self._report.text(text)


def _tokenizer(model: EagleForCausalLM) -> PreTrainedTokenizerBase:
    """What ``build_tokenizer(use_legacy=False)`` reads, with the padding token that pipelines ask for."""
    directory = model.engine.directory
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            f"{directory}: transformers cannot read the tokenizer ({error}), which MindFormers needs: "
            "leave out --engine mindformers."
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _options(config: Config) -> dict[str, Any]:
    """The section ``generation`` in MindFormers' words.

    Raises:
        UserError: an option that MindFormers does not have.
    """
    asked = config.generation
    for name, off in (
        ("min_p", 0),
        ("stop", []),
        ("special_tokens_in_text", "control"),
        ("stop_loops", False),
    ):
        if (getattr(asked, name) or off) != off:
            raise UserError(
                f"generation.{name} is {getattr(asked, name)!r}, an option that MindFormers does not have: "
                f"set generation.{name}={str(off).lower()}, or leave out --engine mindformers."
            )
    sampled = {"temperature": asked.temperature, "top_k": asked.top_k, "top_p": asked.top_p}
    return {
        "max_new_tokens": asked.max_new_tokens,
        "do_sample": asked.temperature > 0,
        "repetition_penalty": asked.repetition_penalty,
        "seed": asked.seed,
        **(sampled if asked.temperature > 0 else {}),
        **({"eos_token_id": []} if asked.ignore_eos else {}),
    }
