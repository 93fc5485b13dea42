"""The section of generation."""

from typing import Annotated, Literal

from pydantic import Field

from ms_eagle.config.schema import Section


class GenerationSection(Section):
    """What is generated, and when it ends."""

    max_new_tokens: int = Field(
        512,
        ge=0,
        json_schema_extra={"unit": "tokens"},
        description="Most tokens to write per answer, which also ends where `model.max_length` is reached.",
    )
    temperature: float = Field(
        0.0,
        ge=0,
        description="0 always takes the most likely token (greedy); larger values sample more freely.",
    )
    top_k: int = Field(0, ge=0, description="Sample among this many most likely tokens. 0 means all of them.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the most likely tokens that together reach this probability. 1 means all.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Drop tokens less likely than this fraction of the most likely one. 0 drops none.",
    )
    repetition_penalty: float = Field(
        1.0,
        ge=0.001,
        le=1000,
        description="Divides the positive logits, and multiplies the negative ones, of tokens that have"
        " occurred in the prompt or the answer. 1 changes nothing.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**64 - 1,
        description="Seed of the sampling. The same seed gives the same text, and two seeds differ.",
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Texts that end the answer; the answer is cut before the first that appears.",
    )
    stop_tokens: list[int | Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Tokens that end the answer besides the model's own, as ids or as names of special tokens"
        " such as `<|im_end|>`. `--verbose` prints all tokens that end an answer.",
    )
    stop_loops: bool | None = Field(
        None,
        description="End an answer that goes round in circles: whose end is one phrase of 1 to 64 tokens at"
        " least 8 times in a row, together at least 128 tokens. null does so in a chat only.",
    )
    special_tokens_in_text: Literal["control", "text"] = Field(
        "control",
        description="What the name of a special token, such as `<|im_end|>`, is where a prompt or a message"
        " holds it: `control` makes it that token, as transformers does, so that text from elsewhere can end"
        " a turn or begin one. With `text` only the chat template writes control tokens; what a tokenizer"
        " or template cannot read so is refused.",
    )
    ignore_eos: bool = Field(
        False,
        description="Write on past the model's end-of-sequence tokens, for measurements.",
    )
