"""What a training YAML may say, checked as strictly as any configuration.

``docs/training_config.md`` is generated from here.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ms_eagle.config import sections as config
from ms_eagle.config.sections import Section
from ms_eagle.errors import UserError


class DataSection(Section):
    """What is learnt from: a teacher's own answers."""

    teacher: str = Field(
        min_length=1,
        description="Configuration of the teacher, a YAML file such as `configs/smollm2_135m.yaml`. A"
        " relative path is taken from the current directory, as all paths here.",
    )
    corpus: str = Field(
        min_length=1,
        description="Corpus file that `tools/make_corpus.py` made with this teacher and chat template.",
    )
    features: str | None = Field(
        None,
        min_length=1,
        description="Directory where the teacher's hidden states are kept, computed once for each corpus: 2"
        " bytes for each of (taps + 1) * hidden size values of every token. null computes them anew in every"
        " step, for small corpora.",
    )
    wait: int = Field(
        900,
        ge=1,
        json_schema_extra={"unit": "seconds"},
        description="How long to wait for a sign of life from another process that computes the same"
        " features.",
    )
    held_out: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Share of each source, its last conversations, that is evaluated on and never trained on."
        " 0 evaluates on what is trained on, for experiments.",
    )
    draft_vocab_size: int = Field(
        6144,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Draft vocabulary: the most frequent tokens of the answers trained on, and every special"
        " token.",
    )


class HeadSection(Section):
    """What the head looks like; its sizes are those of a block of the teacher."""

    layers: int = Field(1, ge=1, json_schema_extra={"unit": "layers"}, description="Decoder layers.")
    taps: list[Annotated[int, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        json_schema_extra={"unit": "teacher blocks"},
        description="Teacher blocks whose *inputs* feed the head, ascending. null takes 2, L/2 and L-3 of L"
        " blocks.",
    )
    fc_norm: bool = Field(True, description="An RMSNorm on each tap before they are joined (EAGLE-3.1).")
    norm_output: bool = Field(
        True, description="The next draft step starts from the normed state (EAGLE-3.1)."
    )
    start: str = Field(
        "teacher",
        min_length=1,
        description="Where the weights start: `teacher` copies the teacher's last block, final norm and LM"
        " head rows; `random`; anything else is the directory of a head to train on, with its draft"
        " vocabulary.",
    )


class OptimizationSection(Section):
    """How the weights move."""

    ttt_steps: int = Field(
        3,
        ge=1,
        json_schema_extra={"unit": "steps"},
        description="Times that the head is unrolled over its own outputs (training-time test).",
    )
    step_decay: float = Field(0.8, gt=0, le=1, description="Weight of step s in the loss is this to the s.")
    rows: int = Field(
        8,
        ge=1,
        json_schema_extra={"unit": "rows"},
        description="Rows of a step; each worker of a data-parallel run takes as many.",
    )
    row_length: int = Field(
        512,
        ge=8,
        json_schema_extra={"unit": "tokens"},
        description="Tokens of a row, which holds several whole conversations; longer ones are cut.",
    )
    queries: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Largest share of a row that the loss looks at; answers beyond it are left out.",
    )
    epochs: float | None = Field(
        None, gt=0, description="Passes over the corpus. Give either this or `steps`."
    )
    steps: int | None = Field(
        None, ge=1, json_schema_extra={"unit": "steps"}, description="Steps in all, instead of `epochs`."
    )
    muon: bool = Field(
        False,
        description="Muon takes the steps of all matrices but the LM head, AdamW the others; both with the"
        " same learning rate.",
    )
    learning_rate: float = Field(6e-4, gt=0, description="Largest learning rate.")
    warmup: float = Field(
        0.03, ge=0, lt=1, description="Share of the steps in which the learning rate rises to its largest."
    )
    final_rate: float = Field(
        0.05, ge=0, le=1, description="Where its cosine ends, as a share of the largest learning rate."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of AdamW's mean of gradients.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of AdamW's mean of squared gradients.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decay of matrices.")
    clip: float = Field(0.5, gt=0, description="Largest norm of the gradient; larger ones are scaled to it.")
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of the order of the corpus and of random start weights."
    )


class EvaluationSection(Section):
    """How progress is judged: the head drafts greedily against the teacher on held-out text."""

    interval: int = Field(
        100, ge=1, json_schema_extra={"unit": "steps"}, description="Steps between evaluations."
    )
    depth: int = Field(
        5, ge=1, json_schema_extra={"unit": "tokens"}, description="Length of the drafts that are judged."
    )


class OutputSection(Section):
    """What is written where."""

    directory: str = Field(
        min_length=1,
        description="Directory of the run. The same command continues a run that was interrupted.",
    )
    checkpoint_interval: int = Field(
        100,
        ge=1,
        json_schema_extra={"unit": "steps"},
        description="Steps between checkpoints: most work that a kill can cost.",
    )
    dtype: Literal["float16", "float32"] = Field(
        "float16", description="Number format of the published head."
    )
    layout: Literal["sglang", "safeailab", "speculators"] | None = Field(
        None,
        description="Layout of the published head (docs/head_formats.md). null takes the first of these that"
        " can say all that the head has.",
    )
    licence: str | None = Field(
        None, min_length=1, description="Licence to state in the head's model card, such as `apache-2.0`."
    )


class TrainingConfig(Section):
    """One whole training configuration: the sections of a YAML file."""

    data: DataSection
    head: HeadSection = HeadSection()
    optimization: OptimizationSection
    evaluation: EvaluationSection = EvaluationSection()
    output: OutputSection


def load_training_config(path: Path, overrides: list[str] | None = None) -> TrainingConfig:
    """Read a training YAML, apply ``overrides`` and check it all.

    Raises:
        UserError: as ``config.read``; neither or both of epochs and steps are given.
    """
    configuration = config.read(TrainingConfig, path, overrides or [], "optimization.learning_rate=4e-4")
    if (configuration.optimization.epochs is None) == (configuration.optimization.steps is None):
        both = "both are" if configuration.optimization.epochs is not None else "neither is"
        raise UserError(
            f"{path}: {both} set of optimization.epochs and optimization.steps; expected one of them, the "
            "other null."
        )
    return configuration
