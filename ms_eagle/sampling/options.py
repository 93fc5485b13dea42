"""How a request wants its tokens chosen, and how that reaches the device.

Field names, order and meaning are those of Hugging Face transformers' generation processors: the repetition
penalty acts on raw logits; then temperature, top_k, top_p and min_p, each on what the one before left.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.sampling.uniforms import check_seed

NO_TOP_K = 2**24
"""What `params_tensor` stores for `top_k = 0`: larger than any vocabulary and exact in float32."""

NO_MIN_P = 1e9
"""What `params_tensor` stores for `min_p = 0`: a distance in nats that no kept token reaches."""

_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-20, 1e30  # beyond these float32 would turn them into 0 or infinity

MAX_END_IDS = 8
"""Most tokens that `min_length` can keep from ending a sequence; also in kernels/cpu/sampling.h."""

OPTIONS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p_nats",
    "repetition_penalty",
    "keep_crossing",
    "min_length",
)
PARAMS = (*OPTIONS, *(f"end_{i}" for i in range(MAX_END_IDS)))
"""Columns of `params_tensor`. `min_p_nats` is `-ln(min_p)`: `p >= min_p * p_max` means that the scaled logit
lies no further than this below the largest one, which needs no softmax. Unused `end_` columns repeat one."""


@dataclass(frozen=True)
class SamplingParams:
    """One request's sampling options; the defaults are greedy decoding.

    | field | range | off |
    |---|---|---|
    | temperature | 0 (greedy) or more | 1 |
    | top_k | 0 or more: keep the k best | 0 |
    | top_p | (0, 1]: smallest set of best tokens whose probability reaches it | 1 |
    | min_p | [0, 1]: drop tokens below this fraction of the best one's probability | 0 |
    | repetition_penalty | above 0: tokens seen before are divided (logit > 0) or multiplied by it | 1 |
    | seed | 0 .. 2**64 - 1 | |
    | keep_crossing | whether top_p keeps the token that crosses it; MindFormers drops it | True |
    | min_length | 0 or more: tokens of prompt and answer before one of end_ids may be chosen | 0 |
    | end_ids | up to 8 ids of tokens | () |
    | penalised | ids that the repetition penalty takes for seen besides those of the sequence | () |

    Raises UserError naming the field, its value and the range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    keep_crossing: bool = True
    min_length: int = 0
    end_ids: Sequence[int] = ()
    penalised: Sequence[int] = ()

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, "0 (greedy) or a number above 0", lambda v: v >= 0)
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int | np.integer) or self.top_k < 0:
            raise _refusal("top_k", self.top_k, "an integer, 0 (off) or more")
        _check_number("top_p", self.top_p, "a number above 0 and at most 1 (1 is off)", lambda v: 0 < v <= 1)
        _check_number("min_p", self.min_p, "a number from 0 (off) to 1", lambda v: 0 <= v <= 1)
        _check_number(
            "repetition_penalty",
            self.repetition_penalty,
            "a number from 0.001 to 1000 (1 is off)",
            lambda v: 1e-3 <= v <= 1e3,
        )
        check_seed(self.seed)
        if not 0 <= self.min_length <= NO_TOP_K:
            raise _refusal("min_length", self.min_length, f"0 (off) to {NO_TOP_K} tokens")
        if len(self.end_ids) > MAX_END_IDS or any(not 0 <= token < NO_TOP_K for token in self.end_ids):
            raise _refusal("end_ids", self.end_ids, f"at most {MAX_END_IDS} token ids")

    @property
    def greedy(self) -> bool:
        """Whether every token is an argmax, so that no uniform is needed."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether every token is the argmax of the logits as they are."""
        delayed = self.min_length > 0 and len(self.end_ids) > 0
        return self.greedy and self.repetition_penalty == 1.0 and not delayed


def params_tensor(params: Sequence[SamplingParams]) -> np.ndarray:  # float32 [B, 15]
    """Pack the options of a batch into one row each, columns as in `PARAMS`.

    The values enter the compiled graph as data: changing them recompiles nothing. Seeds travel apart, as
    uniforms (`ms_eagle.sampling.uniforms.uniform_table`).
    """
    rows = [
        (
            min(max(p.temperature, _MIN_TEMPERATURE), _MAX_TEMPERATURE) if p.temperature else 0.0,
            min(p.top_k, NO_TOP_K) if p.top_k else NO_TOP_K,
            p.top_p,
            -math.log(p.min_p) if p.min_p > 0 else NO_MIN_P,
            p.repetition_penalty,
            float(p.keep_crossing or np.float32(p.top_p) == 1),  # nothing crosses a limit of 1
            p.min_length if p.end_ids else 0,
            *(p.end_ids[min(i, len(p.end_ids) - 1)] if p.end_ids else 0 for i in range(MAX_END_IDS)),
        )
        for p in params
    ]
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(PARAMS))


def _check_number(field: str, value: object, expected: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _refusal(field, value, expected)
    if not math.isfinite(value) or not holds(float(value)):
        raise _refusal(field, value, expected)


def _refusal(field: str, value: object, expected: str) -> UserError:
    return UserError(f"{field}: found {value!r}, expected {expected}")
