"""Every number and switch of a config.json, of a teacher or a head: one schema of kinds and ranges.

It says what a value may be where a file has one; which keys must be there depends on the model and is for the
readers to say.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ms_eagle.config import schema
from ms_eagle.errors import UserError

Size = Annotated[int, Field(ge=1, lt=1 << 31)]
Layers = Annotated[int, Field(ge=1, le=10_000)]  # far beyond any model; tables are made of it
Positive = Annotated[float, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]


class _Values(BaseModel):
    """Values of one mapping; other keys are for others to judge. A default only means absence."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class DecoderValues(_Values):
    """The top level of config.json, or a head's options brought to one level."""

    hidden_size: Size = 1
    intermediate_size: Size = 1
    num_hidden_layers: Layers = 1
    num_attention_heads: Size = 1
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size = 1
    max_position_embeddings: Size = 1
    rms_norm_eps: float = Field(1.0, gt=0, le=1)
    rope_theta: float | None = Field(None, gt=1)
    target_hidden_size: Size | None = None
    draft_vocab_size: Size | None = None
    truncated_vocab_size: Size | None = None
    num_aux_hidden_states: Size | None = None
    eagle_aux_hidden_state_layer_ids: list[Natural] | None = None
    attention_bias: bool | None = None
    qkv_bias: bool | None = None
    mlp_bias: bool | None = None
    bias: bool | None = None
    tie_word_embeddings: bool | None = None
    use_sliding_window: bool | None = None
    fc_norm: bool | None = None
    norm_before_fc: bool | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    return_hidden_post_norm: bool | None = None


class RopeValues(_Values):
    """``rope_scaling`` or ``rope_parameters``."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = Field(None, gt=1)
    factor: float | None = Field(None, ge=1)
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: float | None = Field(None, ge=1)
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: float | None = Field(None, ge=0)
    mscale_all_dim: float | None = Field(None, ge=0)
    truncate: bool | None = None


def check(kind: type[DecoderValues] | type[RopeValues], values: Mapping[str, object], what: str) -> None:
    """Check every value that ``kind`` knows.

    Args:
        kind: the schema.
        values: the mapping, as JSON has it.
        what: goes before a key in messages, such as ``config.json: ``.

    Raises:
        UserError: a value of another kind or out of range, naming the key.
    """
    try:
        kind.model_validate(dict(values))
    except ValidationError as error:
        key = str(error.errors(include_url=False)[0]["loc"][0])
        expected = schema.expected(kind.model_fields[key])
        raise UserError(f"{what}{key} is {values[key]!r:.80}; expected {expected}.") from error
