"""``EagleForCausalLM``: a MindFormers model whose ``generate()`` is ms_eagle's engine."""

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from mindformers import (
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    MindFormerModuleType,
    MindFormerRegister,
    PreTrainedModel,
)
from mindformers.generation.streamers import BaseStreamer
from mindformers.generation.utils import GenerateOutput

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion
from ms_eagle.errors import UserError
from ms_eagle.mindformers import saving
from ms_eagle.mindformers.config import EagleConfig
from ms_eagle.mindformers.native import load
from ms_eagle.mindformers.options import merged, row_options, unpadded
from ms_eagle.mindformers.scores import StepLogits, on_numpy, scores
from ms_eagle.mindformers.value_kinds import token_ids
from ms_eagle.system.json_file import read_object

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=True)
@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class EagleForCausalLM(PreTrainedModel):
    """A teacher and a drafter behind MindFormers' interfaces: pipelines, streamers, chat, Trainer.predict.

    The Cell has no parameters of its own: weights and caches belong to ``engine``, whose graphs are compiled
    on the first ``generate()`` and static from then on.

    Attributes:
        config: an ``EagleConfig``.
        engine: the loaded ``ms_eagle.engine.engine.Engine``.
        generation_config: defaults of ``generate()``: generation_config.json of the model, under the
            generation options of ``config``.
        completions: the engine's view of the last ``generate()``, one for each row: acceptance, times.
    """

    config_class = EagleConfig
    base_model_prefix = "eagle"
    weight_mapping: ClassVar[list] = []  # MindFormers looks for one when it loads safetensors
    _support_list: ClassVar[list] = []

    def __init__(self, config: EagleConfig, engine: Engine | None = None) -> None:
        """Load the model that ``config`` names, or take an engine that is there.

        Raises:
            UserError: see ``EagleConfig.engine_config`` and ``native.load``.
        """
        if not isinstance(config, EagleConfig):
            raise UserError(
                f"EagleForCausalLM: config is a {type(config).__name__}; expected an EagleConfig, or use "
                "from_pretrained for a directory."
            )
        # Before the base class computes anything: a device can be set only until then.
        engine = load(config) if engine is None else engine
        super().__init__(config, auto_prefix=False)
        self.engine = engine
        self.completions: tuple[Completion, ...] = ()
        self.generation_config = self._defaults()
        self._steps: StepLogits | None = None

    def _defaults(self) -> GenerationConfig:
        """generation_config.json, and over it what the model's configuration sets."""
        config, tokenizer = self.config, self.engine.tokenizer
        directory = self.engine.directory
        if config.directory is not None and (config.directory / "generation_config.json").is_file():
            directory = config.directory
        found = _generation_config(directory / "generation_config.json")
        neutral = vars(GenerationConfig())
        for name, value in vars(GenerationConfig.from_model_config(config)).items():
            if name not in _IDS and value != neutral[name]:
                setattr(found, name, value)
        own = {"bos_token_id": tokenizer.bos_id, "eos_token_id": list(tokenizer.eos_ids)}
        own["pad_token_id"] = tokenizer.pad_id
        for name in _IDS:
            if getattr(found, name) in (None, []):
                value = getattr(config, name)
                setattr(found, name, own[name] if value is None else value)
        ends = [*token_ids(found.eos_token_id), *tokenizer.eos_ids]
        found.eos_token_id = list(dict.fromkeys(ends))
        found._from_model_config = False
        return found

    def generate(
        self,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | np.ndarray,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        streamer: BaseStreamer | None = None,
        seed: int | None = None,
        *,
        attention_mask: Sequence[int] | Sequence[Sequence[int]] | np.ndarray | None = None,
        token_type_ids: Sequence[int] | Sequence[Sequence[int]] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> list[np.ndarray] | GenerateOutput:
        """Continue prompts, as ``GenerationMixin.generate`` does; the arguments and their order are its own.

        Args:
            input_ids: one prompt, or prompts padded to one length, at either end.
            generation_config: replaces ``self.generation_config``.
            logits_processor: not supported: choices are made on the device.
            streamer: gets the prompt, then every token of a single prompt, or, for several, a list for each
                with its new tokens.
            seed: of the sampling, from 0 to 2**64 - 1; None draws one from numpy's global state.
            attention_mask: as tokenizers return it: of ``input_ids``' shape, 0 where a prompt is padded.
                Without it every row is taken whole.
            token_type_ids: as tokenizers return them: nothing but 0.
            kwargs: replace fields of the generation config.

        Returns:
            prompt and answer of each row, int32, the end-of-sequence token included; as ``GenerateOutput``
            with ``scores`` and ``logits`` if asked for.

        Raises:
            UserError: an option that is not supported or out of range, ids that do not belong to the model,
                no room for an answer.
        """
        if logits_processor:
            raise UserError(
                "logits_processor is not supported by ms_eagle, which chooses tokens on the device."
            )
        base = self.generation_config if generation_config is None else generation_config
        config = merged(base, kwargs)
        # Ids that no token has never end an answer; MindFormers' processors would index with them.
        size = self.engine.graphs.facts.vocab_size
        config.eos_token_id = [token for token in config.eos_token_id if 0 <= token < size]
        ids = _matrix(input_ids)
        if token_type_ids is not None and np.any(np.asarray(token_type_ids)):
            raise UserError("token_type_ids holds other numbers than 0: ms_eagle's models have one type.")
        mask = None if attention_mask is None else _matrix(attention_mask, "attention_mask")
        prompts = unpadded(ids, mask, config.pad_token_id)
        config.pad_token_id = 0 if config.pad_token_id is None else int(config.pad_token_id)
        lengths = [len(prompt) for prompt in prompts]
        options = row_options(
            config,
            lengths,
            capacity=self.engine.graphs.facts.sizes.capacity,
            vocab_size=size,
            seed=seed,
        )
        for prompt, wanted in zip(prompts, options, strict=True):
            self.engine.check_prompt(prompt, wanted)
        stream = _Stream(streamer, len(prompts))
        stream.begin(ids)
        try:
            completions = self.engine.generate(prompts, options, on_tokens=stream.put)
        finally:
            stream.end()
        self.completions = tuple(completions)
        if any(completion.finish_reason == "interrupted" for completion in completions):
            raise KeyboardInterrupt
        sequences = [[*p, *c.token_ids] for p, c in zip(prompts, completions, strict=True)]
        outputs = [np.array(sequence, np.int32) for sequence in sequences]
        if not config.return_dict_in_generate:
            return outputs
        given, processed = self._steps_of(sequences, lengths, config)
        return GenerateOutput(sequences=outputs, scores=processed, logits=given)

    def _steps_of(
        self, sequences: list[list[int]], lengths: list[int], config: GenerationConfig
    ) -> tuple[tuple[np.ndarray, ...] | None, tuple[np.ndarray, ...] | None]:
        """``logits`` and ``scores`` of the output; None where they are not asked for."""
        if not config.output_logits and not config.output_scores:
            return None, None
        if self._steps is None:
            self._steps = StepLogits(self.engine)
        logits = tuple(self._steps.read(sequences, lengths))
        if not config.output_scores:
            return logits, None
        if config.do_sample and config.top_p == 1:
            config.top_p = None  # off: their float32 sum may reach 1 before the last token that top_k keeps
        process = [self._processors(config, length) for length in lengths]
        told = scores(logits, sequences, lengths, config, self.engine.graphs.facts.sizes.capacity, process)
        return (logits if config.output_logits else None), told

    def _processors(self, config: GenerationConfig, length: int) -> LogitsProcessorList:
        """What MindFormers makes scores with, for a prompt of ``length`` tokens."""
        processors = on_numpy(self.get_logits_processor(config, length, LogitsProcessorList()))
        if config.do_sample:
            processors.extend(on_numpy(self.get_logits_warper(config)))
        return processors

    def chat(
        self,
        tokenizer: Any,
        query: str,
        history: list[dict[str, str]] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[str, list[dict[str, str]]]:
        """See ``GenerationMixin.chat``; arguments and result are its own.

        Raises:
            UserError: ``query`` is no text, ``history`` no list of messages, or see ``generate``.
        """
        if not isinstance(query, str):
            raise UserError(f"chat: query is a {type(query).__name__}; expected text.")
        turns = [] if history is None else history
        if not isinstance(turns, list) or not all(map(_is_message, turns)):
            raise UserError(
                f"chat: history is {history!r:.80}; expected a list of messages such as "
                "{'role': 'user', 'content': 'Hello'}, or None."
            )
        return super().chat(tokenizer, query, history, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse a forward pass: the engine's graphs belong to its own loop.

        Raises:
            UserError: always.
        """
        raise UserError(
            "model(...) and model.infer(...): ms_eagle has no forward pass of its own; call generate(), with "
            "return_dict_in_generate=True and output_logits=True where logits are wanted."
        )

    infer = infer_mcore = forward = __call__

    @property
    def parameter_layout_dict(self) -> NoReturn:
        """Refuse what ``ms.save_checkpoint`` begins with: the Cell has no parameters to save.

        Raises:
            UserError: always.
        """
        raise UserError(
            "save_checkpoint: the weights belong to ms_eagle's engine, a .ckpt file would be empty; call "
            "model.save_pretrained(directory)."
        )

    def load_weights(self, weights_path: str | None = None, weights: Any = None) -> None:
        """Load the teacher of another directory; what is loaded already stays. ``Trainer.predict`` calls it.

        Raises:
            UserError: no directory is named, or see ``native.load``.
        """
        if not isinstance(weights_path, str | os.PathLike) or weights is not None:
            raise UserError("load_weights: expected the path of a Hugging Face directory.")
        path = Path(weights_path).resolve()
        if path in (
            self.engine.directory.resolve(),
            self.config.directory and self.config.directory.resolve(),
        ):
            return
        wanted = copy.copy(self.config)
        wanted.teacher = str(path)
        self.engine, self._steps = load(wanted), None
        self.config.teacher = wanted.teacher

    def save_pretrained(self, save_directory: str, save_name: str = "mindspore_model", **kwargs: Any) -> None:
        """Write a directory that ``from_pretrained`` and ``pretrained_model_dir`` take; see ``saving.save``.

        ``save_name`` has no effect: the files have the names that Hugging Face gives them.

        Raises:
            UserError: other options than ``save_json``, or a directory that cannot be written.
        """
        kwargs.pop("save_json", None)  # config.json is written either way
        for name in kwargs:
            raise UserError(f"save_pretrained: {name} is not supported by ms_eagle: leave it out.")
        if not isinstance(save_directory, str | os.PathLike) or not str(save_directory):
            raise UserError(f"save_pretrained: found {save_directory!r}; expected the path of a directory.")
        saving.save(Path(save_directory), self.config, self.engine, self.generation_config)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_dir: str, *args: Any, **kwargs: Any
    ) -> "EagleForCausalLM":
        """Load a directory that ``save_pretrained`` wrote, or a teacher's Hugging Face directory.

        Args:
            pretrained_model_name_or_dir: the directory.
            args: none.
            kwargs: ``config``, an ``EagleConfig``, or options that go over config.json.

        Raises:
            UserError: it is no directory with a config.json, or see ``__init__``.
        """
        return cls.from_pretrained_experimental_mode(pretrained_model_name_or_dir, *args, **kwargs)

    @classmethod
    def from_pretrained_experimental_mode(
        cls, pretrained_model_name_or_path: str, *args: Any, config: EagleConfig | None = None, **kwargs: Any
    ) -> "EagleForCausalLM":
        """See ``from_pretrained``; MindFormers' Auto classes call it by this name."""
        directory = Path(pretrained_model_name_or_path)
        if args or not (directory / "config.json").is_file():
            raise UserError(
                f"from_pretrained: {directory} has no config.json; expected a directory that save_pretrained "
                "wrote, or a Hugging Face model directory."
            )
        read_object(directory / "config.json")  # MindFormers tells less of one that is broken
        if config is None:
            values, _ = EagleConfig.get_config_dict(str(directory))
            options = {
                name: value for name, value in kwargs.items() if name[0] != "_" and name not in _LOADING
            }
            config = EagleConfig(**{**values, **options, "name_or_path": str(directory)})
        model = cls(config)
        saving.register_tokenizer(directory)
        return model


_LOADING = frozenset(
    ("cache_dir", "force_download", "local_files_only", "token", "revision", "ignore_mismatched_sizes")
)  # of Hugging Face repositories; there is nothing to fetch for a directory


def _is_message(turn: Any) -> bool:
    return isinstance(turn, Mapping) and all(isinstance(turn.get(key), str) for key in ("role", "content"))


class _Stream:
    """Hands tokens to a MindFormers streamer, if there is one."""

    def __init__(self, streamer: BaseStreamer | None, rows: int) -> None:
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise UserError(
                f"streamer is a {type(streamer).__name__}; expected one of MindFormers' streamers, with the "
                "methods put and end."
            )
        self._streamer, self._rows = streamer, rows

    def begin(self, input_ids: np.ndarray) -> None:
        if self._streamer is not None:
            self._streamer.put(input_ids)

    def put(self, news: list[list[int]]) -> None:
        if self._streamer is None:
            return
        if self._rows > 1:
            self._streamer.put(news)
            return
        for token in news[0]:
            self._streamer.put(token)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()


def _generation_config(path: Path) -> GenerationConfig:
    """What a generation_config.json says, if there is one."""
    if not path.is_file():
        return GenerationConfig()
    values = read_object(path)
    try:
        return GenerationConfig.from_dict(values)
    except TypeError as error:
        raise UserError(f"{path}: MindFormers cannot take it ({error}): correct it.") from error


def _matrix(
    values: Sequence[int] | Sequence[Sequence[int]] | np.ndarray, name: str = "input_ids"
) -> np.ndarray:
    """The prompts, or what belongs to their tokens, as ``[B, L]``."""
    if isinstance(values, Mapping):
        raise UserError(f"{name} is a mapping; expected token ids: unpack it, generate(**tokenizer(...)).")
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise UserError(f"{name}: the prompts differ in length: pad them.") from error
    if found.ndim in (1, 2) and not found.size:
        raise UserError(f"{name}: the prompt is empty; expected at least one token: write some text.")
    if found.ndim not in (1, 2) or not (np.issubdtype(found.dtype, np.integer) or found.dtype == bool):
        raise UserError(
            f"{name}: found an array of shape {found.shape} and type {found.dtype}; expected whole numbers, "
            "[L] or [B, L]."
        )
    return found.reshape(-1, found.shape[found.ndim - 1])


AutoModel.register(EagleConfig, EagleForCausalLM, exist_ok=True)
AutoModelForCausalLM.register(EagleConfig, EagleForCausalLM, exist_ok=True)
