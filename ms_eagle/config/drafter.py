"""The section of the drafter."""

from typing import Annotated, Literal

from pydantic import Field

from ms_eagle.config.schema import Section


class DrafterSection(Section):
    """What proposes tokens ahead of the teacher."""

    kind: str = Field(
        "none",
        min_length=1,
        description="`none` decodes with the teacher alone; `eagle3` drafts with an EAGLE-3 head; `ngram`"
        " proposes what followed the last tokens where they stood before in prompt and answer, and needs no"
        " weights; `synthetic` proposes the teacher's own continuation with a chosen probability, for"
        " performance work without a trained head (the teacher runs first, untimed, so every answer is made"
        " twice). docs/drafters.md says which to use when.",
    )
    source: str | None = Field(
        None,
        min_length=1,
        description="Where the head comes from, for `eagle3`: a local directory with config.json and weights,"
        " `hf:org/name`, or `bundled:NAME` for one that the package brings along. Formats:"
        " docs/head_formats.md.",
    )
    weights: Literal["auto", "float32", "int8", "int4"] = Field(
        "auto",
        description="How the head's matrices are held, as `model.weights`; the text does not depend on it,"
        " acceptance hardly. `auto` is `int8` where the teacher has codes, else `float32`.",
    )
    taps: list[Annotated[int, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        json_schema_extra={"unit": "teacher blocks"},
        description="Teacher blocks whose *inputs* feed the head, whatever its config.json says. null takes"
        " the head's own, or the default of three.",
    )
    rope_theta: float | None = Field(
        None,
        gt=0,
        description="Base of the head's rotary embedding, whatever its config.json says. null takes the"
        " head's own.",
    )
    norm_before_residual: bool | None = Field(
        None,
        description="The head's first layer adds to the normed feature, whatever its config.json says. null"
        " takes the head's own. These four switches are explained in docs/head_formats.md;"
        " `tools/check_head.py` says which one a head needs.",
    )
    norm_output: bool | None = Field(
        None,
        description="The head's next step starts from the normed state, whatever its config.json says. null"
        " takes the head's own.",
    )
    double_norm: bool | None = Field(
        None,
        description="The head norms its feature twice, as Model-Optimizer's later trainer does. null is"
        " false.",
    )
    raw_logits: bool | None = Field(
        None,
        description="The head's LM head reads a state without a norm, as SpecForge's `norm_output: false`"
        " does. null is false.",
    )
    vocabulary: int | None = Field(
        None,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="For `eagle3`: draft only this many of the head's tokens, those of the lowest ids, which"
        " a byte-pair vocabulary gives to the most common ones. null drafts all of them.",
    )
    window: int | None = Field(
        None,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Let the drafter see only so many last positions, for measurements in performance mode;"
        " at least `tree.depth`. The teacher sees everything. null shows the drafter everything too.",
    )
    shortest: int = Field(
        2,
        ge=1,
        le=32,
        json_schema_extra={"unit": "tokens"},
        description="For `ngram`: fewest last tokens that must have stood before for a proposal.",
    )
    longest: int = Field(
        8,
        ge=1,
        le=32,
        json_schema_extra={"unit": "tokens"},
        description="For `ngram`: most last tokens that are looked up. Longer runs go before shorter ones.",
    )
    acceptance: float = Field(
        0.7,
        ge=0,
        le=1,
        description="For `synthetic`: probability that the proposal of a depth is the teacher's token, given"
        " that the depths before it were.",
    )
