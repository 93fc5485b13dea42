"""Rotary position embeddings: inverse frequencies for every supported scaling, and cos/sin tables.

Sources of the formulas: RoFormer (arXiv 2104.09864); linear position interpolation (arXiv 2306.15595);
Llama 3.1's frequency bands (the model card's reference code); YaRN (arXiv 2309.00071, sections 3.2 to 3.4).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_eagle.errors import UserError
from ms_eagle.models import config_values

SCALINGS = ("default", "linear", "llama3", "yarn")
_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
_REQUIRED = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor"},
}
# Settings of older code that say nothing: bookkeeping, and factors at which nothing happens.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "finetuned": (True, False),
    "extrapolation_factor": (1,),
    "attn_factor": (1,),
    "partial_rotary_factor": (1,),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one model.

    Attributes:
        head_dim: size of a head, even.
        theta: base of the geometric frequencies.
        scaling: one of ``SCALINGS``.
        parameters: the scaling's numbers, under the names that Hugging Face's config.json uses.
        max_positions: the model's own ``max_position_embeddings``.
    """

    head_dim: int
    theta: float
    scaling: str
    parameters: Mapping[str, float]
    max_positions: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], head_dim: int, default_theta: float | None) -> "RopeConfig":
        """Read the rope settings of a Hugging Face config.json.

        They stand at the top level (``rope_theta`` with ``rope_scaling``) or in ``rope_parameters``.

        Raises:
            UserError: a scaling that is not implemented, a number that is missing or not one, or a
                setting of the scaling that is not known.
        """
        found = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(found, Mapping):
            raise UserError(f"config.json: the rope scaling is {found!r}; expected a mapping of numbers.")
        config_values.check(config_values.RopeValues, found, "config.json: rope setting ")
        settings = dict(found)
        names = [settings.pop(key) for key in ("rope_type", "type") if key in settings]
        scaling = names[0] if names else "default"
        theta = settings.pop("rope_theta", None) or config.get("rope_theta") or default_theta
        if scaling not in SCALINGS:
            raise UserError(
                f"config.json: rope scaling {scaling!r} is not implemented; known are {', '.join(SCALINGS)}."
            )
        if theta is None:
            raise UserError("config.json: rope_theta is missing; add the base the model was trained with.")
        settings = {
            key: value
            for key, value in settings.items()
            if value is not None and not (key in _NEUTRAL and value in _NEUTRAL[key])
        }
        unknown = sorted(set(settings) - _KEYS[scaling])
        if unknown:
            raise UserError(
                f"config.json: {scaling} rope scaling has the unknown setting {unknown[0]!r}; "
                f"known are {', '.join(sorted(_KEYS[scaling])) or 'none'}."
            )
        missing = sorted(_REQUIRED[scaling] - set(settings))
        if missing:
            raise UserError(f"config.json: {scaling} rope scaling lacks {missing[0]!r}; add it.")
        low, high = settings.get("low_freq_factor", 0), settings.get("high_freq_factor", 1)
        if low >= high:
            raise UserError(
                f"config.json: rope setting high_freq_factor is {high!r}; expected more than "
                f"low_freq_factor, {low!r}."
            )
        if head_dim % 2:
            raise UserError(f"config.json: head_dim is {head_dim}; rotary embeddings need an even one.")
        return cls(
            head_dim, float(theta), scaling, settings, int(config.get("max_position_embeddings", 2048))
        )

    def frequencies(self) -> tuple[np.ndarray, float]:
        """Return the inverse frequencies, float32 ``[head_dim / 2]``, and the factor on cos and sin.

        Rounded to float32 where the models' own training code rounds: an exact value would be off by
        position times 6e-8 radians from what the weights were trained with.
        """
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        plain = np.float32(1) / (self.theta ** exponents.astype(np.float64)).astype(np.float32)
        if self.scaling == "linear":
            return plain / self.parameters["factor"], 1.0
        if self.scaling == "llama3":
            return self._llama3(plain), 1.0
        if self.scaling == "yarn":
            return self._yarn(plain)
        return plain, 1.0

    def tables(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cos and sin for positions ``0 .. positions-1``, float32 ``[positions, head_dim / 2]`` each.

        Angles are formed in float32, as the models' own training code does.
        """
        inverse, factor = self.frequencies()
        angles = np.arange(positions, dtype=np.float32)[:, None] * inverse.astype(np.float32)[None, :]
        cos = (np.cos(angles.astype(np.float64)) * factor).astype(np.float32)
        return cos, (np.sin(angles.astype(np.float64)) * factor).astype(np.float32)

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        p = self.parameters
        context = p["original_max_position_embeddings"]
        turns = context * plain / (2 * math.pi)  # full turns a pair makes within the original context
        blend = (turns - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
        blend = np.clip(blend, 0.0, 1.0)  # 0: slow pairs, interpolated; 1: fast pairs, kept
        return (1 - blend) * plain / p["factor"] + blend * plain

    def _yarn(self, plain: np.ndarray) -> tuple[np.ndarray, float]:
        p = self.parameters
        context = p.get("original_max_position_embeddings", self.max_positions)
        factor = p["factor"]

        def pair_of(turns: float) -> float:  # index of the pair that makes so many turns within the context
            return self.head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair_of(p.get("beta_fast", 32)), pair_of(p.get("beta_slow", 1))
        if p.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        width = high - low if high > low else 0.001  # one pair wide at the least: no division by zero
        ramp = np.clip((np.arange(self.head_dim // 2) - low) / width, 0.0, 1.0)

        def temperature(scale: float, weight: float) -> float:
            return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

        attention = p.get("attention_factor")
        if attention is None and p.get("mscale") and p.get("mscale_all_dim"):
            attention = temperature(factor, p["mscale"]) / temperature(factor, p["mscale_all_dim"])
        if attention is None:
            attention = temperature(factor, 1.0)
        return plain * (1 - ramp) + plain / factor * ramp, float(attention)
