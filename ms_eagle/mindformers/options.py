"""From MindFormers' ``GenerationConfig`` to the engine's options: every field honoured, or refused by name.

The meaning of a field is that of MindFormers 1.9 where it differs from Hugging Face's: top_p drops the token
that crosses it, and a repetition penalty takes the padding token for seen. Its two ways of computing count
min_new_tokens of a batch's shorter prompts differently; here it means what its documentation says.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindformers import GenerationConfig

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.mindformers.value_kinds import check_kinds, token_ids
from ms_eagle.sampling.options import SamplingParams

# What pipelines and Trainer.predict hand on besides generation options. use_past has no effect on generate()
# in MindFormers either: caches are always used.
_PASSED_ON = frozenset(
    {
        "batch_size",
        "model_name",
        "use_past",
        "task",
        "framework",
        "image_processor",
        "audio_processor",
        "feature_extractor",
        "is_full_config",
        "save_file",
    }
)

# Fields that this package does not have, with the values at which they change nothing. Those of the second
# block belong to Hugging Face: MindFormers keeps them from generation_config.json and ignores them.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1, None),
    "encoder_repetition_penalty": (1.0, None),
    "parallel_decoding": (False, None),
    "num_return_sequences": (1, None),
    "num_beam_groups": (1, None),
    "penalty_alpha": (None, 0.0),
    "min_p": (None, 0.0),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None, []),
    "force_words_ids": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, {}),
    "stop_strings": (None, []),
    "stopping_criteria": (None, []),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
    "max_time": (None,),
    "logits_processor": (None, []),
    "assistant_model": (None,),
}
_SEED_STEP = 0x9E3779B97F4A7C15  # odd: the rows of a batch never share a seed


def merged(base: GenerationConfig, kwargs: Mapping[str, Any]) -> GenerationConfig:
    """A copy of ``base`` with ``kwargs`` over it.

    Raises:
        UserError: an option that nobody knows, one that this package does not have, or a value of another
            kind than its option takes.
    """
    if not isinstance(base, GenerationConfig):
        raise UserError(
            f"generation_config is a {type(base).__name__}; expected a mindformers.GenerationConfig: give "
            "single options as arguments of their own."
        )
    config = GenerationConfig.from_dict(base.to_dict())
    known = {name: value for name, value in kwargs.items() if name in vars(config)}
    config.update(**known)
    for name in kwargs:
        if name not in known and name not in _PASSED_ON and name not in _NEUTRAL:
            near = difflib.get_close_matches(name, [n for n in vars(config) if n[0] != "_"], 1, 0)
            raise UserError(f"generate() has no option {name}; did you mean {near[0]}?")
    for name, neutral in _NEUTRAL.items():
        found = kwargs[name] if name in kwargs else getattr(config, name, None)
        if found is not None and (isinstance(found, np.ndarray) or found not in neutral):
            raise UserError(f"{name} is {found!r}, which ms_eagle does not support: leave it out.")
    check_kinds(config)
    config.eos_token_id = token_ids(config.eos_token_id)
    return config


def unpadded(input_ids: np.ndarray, mask: np.ndarray | None, pad: int | None) -> list[list[int]]:
    """The prompts of ``[B, L]`` without padding, which only a mask can tell from a prompt's own tokens.

    Args:
        input_ids: padded at either end.
        mask: ``[B, L]``, 1 where a prompt's tokens stand; None takes every row whole.
        pad: the padding token; None where there is none.

    Raises:
        UserError: a mask that is none, or a row of nothing but padding; without a mask, rows that look
            padded: another row of the batch does not end alike, or a row ends in several padding tokens.
    """
    if mask is None:
        _refuse_padding(input_ids, pad)
        return input_ids.tolist()
    if mask.shape != input_ids.shape or not np.isin(mask, (0, 1)).all():
        raise UserError(
            f"attention_mask: found an array of shape {list(mask.shape)}; expected 0 and 1 for each of the "
            f"input_ids, {list(input_ids.shape)}."
        )
    where = mask.astype(bool)
    if not where.any(1).all():
        raise UserError(f"input_ids: row {int(np.argmin(where.any(1)))} holds nothing but padding.")
    begins, ends = where.argmax(1), where.shape[1] - where[:, ::-1].argmax(1)
    holes = ends - begins != where.sum(1)
    if holes.any():
        raise UserError(
            f"attention_mask: row {int(np.argmax(holes))} has zeros between ones; ms_eagle reads all of a "
            "prompt: leave those tokens out of input_ids."
        )
    return [row[begin:end].tolist() for row, begin, end in zip(input_ids, begins, ends, strict=True)]


def _refuse_padding(input_ids: np.ndarray, pad: int | None) -> None:
    """Refuse rows without a mask that a tokenizer may have padded."""
    if pad is None:
        return
    for side, ids in (("begins", input_ids), ("ends", input_ids[:, ::-1])):
        runs = np.logical_and.accumulate(ids == pad, axis=1).sum(1)  # padding tokens at this end of each row
        padded = runs > (1 if len(runs) == 1 or runs.min() > 1 else runs.min())
        if padded.any():
            raise UserError(
                f"input_ids: row {int(np.argmax(padded))} {side} with the padding token {pad}, which only a "
                "mask tells from a prompt's own: give attention_mask too, generate(**tokenizer(...))."
            )


def row_options(
    config: GenerationConfig, lengths: Sequence[int], *, capacity: int, vocab_size: int, seed: int | None
) -> list[GenerationOptions]:
    """The engine's options for each row of a batch.

    Args:
        config: as `merged` returns it.
        lengths: of the prompts.
        capacity: most tokens of a sequence; max_length beyond it means it.
        vocab_size: of the teacher.
        seed: None takes one from numpy's global state, which ``seed`` of a YAML file sets.

    Raises:
        UserError: a value out of range, or no room for a single token.
    """
    if seed is None:
        seed = int(np.random.randint(0, 2**63)) if config.do_sample else 0
    elif isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise UserError(f"seed is {seed!r}; expected an integer from 0 to {2**64 - 1}.")
    longest = max(lengths)
    least = [_min_length(config, length) for length in lengths]
    sampling = {
        **(_sampled(config) if config.do_sample else {}),
        "repetition_penalty": 1.0 if config.repetition_penalty is None else float(config.repetition_penalty),
    }
    if any(least):  # else any number of tokens may end a sequence
        sampling["end_ids"] = tuple(int(token) for token in config.eos_token_id)
    pad = 0 if config.pad_token_id is None else int(config.pad_token_id)  # as MindFormers takes None
    if sampling["repetition_penalty"] != 1.0 and pad < vocab_size:
        sampling["penalised"] = (pad,)
    return [
        GenerationOptions(
            max_new_tokens=_room(config, length, longest, capacity),
            sampling=SamplingParams(
                seed=(int(seed) + row * _SEED_STEP) % 2**64, min_length=least[row], **sampling
            ),
            eos_ids=tuple(int(token) for token in config.eos_token_id),
        )
        for row, length in enumerate(lengths)
    ]


def _room(config: GenerationConfig, length: int, longest: int, capacity: int) -> int:
    """New tokens for a prompt of ``length`` tokens."""
    new = config.max_new_tokens
    if new is not None:
        if new < 0:
            raise UserError(f"max_new_tokens is {new}; expected 0 or more.")
        limit, name = length + new, "seq_length"
    else:
        limit, name = config.max_length, "max_length"
        if limit is None:
            raise UserError("max_new_tokens and max_length are both None: set one of them.")
        if longest >= config.max_length:
            raise UserError(
                f"max_length is {config.max_length}, which leaves no room behind a prompt of {longest} "
                "tokens: raise it, or set max_new_tokens instead."
            )
    if longest > capacity or (longest == capacity and new != 0):
        raise UserError(
            f"{name}: the prompt has {longest} tokens, which leaves no room in the model's seq_length of "
            f"{capacity}: shorten it or raise model_config.seq_length."
        )
    return min(limit, capacity) - length


def _min_length(config: GenerationConfig, length: int) -> int:
    """Tokens before a sequence may end whose prompt has ``length``."""
    new = config.min_new_tokens or 0
    return max(0, config.min_length or 0, length + new if new > 0 else 0)


def _sampled(config: GenerationConfig) -> dict[str, Any]:
    """temperature, top_k and top_p; None or, for top_k, 0 switches a filter off."""
    temperature = 1.0 if config.temperature is None else config.temperature
    if temperature == 0:
        raise UserError(
            "temperature is 0 with do_sample=True; expected a number above 0, or do_sample=False."
        )
    top_k = 0 if config.top_k is None or config.top_k < 0 else int(config.top_k)
    top_p = 1.0 if config.top_p is None else float(config.top_p)
    return {
        "temperature": float(temperature),
        "top_k": top_k,
        "top_p": 2.0**-24 if top_p == 0 else top_p,  # only the best token
        "keep_crossing": False,
    }
