"""The model card of a trained head: where it comes from, how it was made, and how good it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.layouts import LAYOUTS
from ms_eagle.training.config import TrainingConfig
from ms_eagle.training.run.checkpoint import RunProgress
from ms_eagle.training.run.metrics import Acceptance

_ROWS = 10  # evaluations shown
_TAIL = 50  # steps averaged for end values


@dataclass(frozen=True)
class CardData:
    """What a head was trained on.

    Attributes:
        teacher: where it came from; teacher_sha256: hash of its weights.
        conversations, answer_tokens: by source.
        layout: the head's, of ``LAYOUTS``.
        corpus_sha256: hash of the corpus.
        coverage, held_out_coverage: share of answer tokens that the draft vocabulary has.
    """

    teacher: str
    teacher_sha256: str
    layout: str
    conversations: Mapping[str, int]
    answer_tokens: Mapping[str, int]
    corpus_sha256: str
    coverage: float
    held_out_coverage: float


def card(
    config: TrainingConfig,
    head: HeadConfig,
    data: CardData,
    progress: RunProgress,
    acceptance: Acceptance,
    steps: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]],
    total_steps: int,
) -> str:
    """The text of README.md, Markdown with the front matter that model hubs read.

    Args:
        config, head, data: what was trained, how, on what.
        progress: when these weights were the best; ``acceptance``: theirs.
        steps, evaluations: figures up to then.
        total_steps: that the run was planned for.
    """
    licence = config.output.licence
    front = [
        "---",
        *([f"license: {licence}"] if licence else []),
        "tags: [eagle3, speculative-decoding]",
        "---",
    ]
    parts = [
        "\n".join(front),
        f"# EAGLE-3 head for {data.teacher}",
        f"Proposes tokens to {data.teacher} for speculative decoding; of no use with any other model. "
        f"Trained with ms_eagle (`tools/train_draft.py`). The layout `{data.layout}` is for "
        f"{LAYOUTS[data.layout].readers}: `config.json` and `model.safetensors`.{_warning(head)}",
        "## Head",
        _table(
            ("", ""),
            [
                ("decoder layers", head.num_layers),
                ("hidden size", head.hidden_size),
                ("draft vocabulary", f"{head.draft_vocab_size} of {head.vocab_size} tokens"),
                ("taps (inputs of teacher blocks)", ", ".join(map(str, head.taps))),
                ("fc_norm, norm_output", f"{head.fc_norm}, {head.norm_output}".lower()),
                ("number format", config.output.dtype),
            ],
        ),
        "## Data",
        "The teacher's own answers, token for token as it reads and writes them.",
        _table(
            ("source", "conversations", "answer tokens"),
            [
                *((name, count, data.answer_tokens[name]) for name, count in data.conversations.items()),
                ("all", sum(data.conversations.values()), sum(data.answer_tokens.values())),
            ],
        ),
        f"The last {config.data.held_out:.0%} of each source were held out. The draft vocabulary holds the "
        f"most frequent tokens of the answers trained on: {data.coverage:.2%} of them, and "
        f"{data.held_out_coverage:.2%} of those held out.",
        "## Training",
        _training(config, progress, steps, total_steps),
        "## Acceptance",
        f"Simulated on {acceptance.judged} held-out positions: the head drafts {len(acceptance.depths)} "
        "tokens greedily, a chain without a tree, and a draft counts as far as it is what the teacher wrote. "
        f"**Mean accepted length {acceptance.length:.3f}**, without the teacher's own next token.",
        _table(
            ("right up to depth", *map(str, range(1, len(acceptance.depths) + 1))),
            [("share", *(f"{share:.3f}" for share in acceptance.depths))],
        ),
        "## Curves",
        _curves(steps, evaluations),
        "## Licence",
        f"{licence}." if licence else "Not stated; the teacher's licence and that of the prompts apply.",
        f"Teacher sha256 `{data.teacher_sha256}`, corpus sha256 `{data.corpus_sha256}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _warning(head: HeadConfig) -> str:
    names = [name for name in ("fc_norm", "norm_output") if getattr(head, name)]
    if not names:
        return ""
    return (
        f" It has {' and '.join(names)} (EAGLE-3.1), which vLLM, SGLang and TensorRT-LLM know in "
        "their releases since June 2026: **older ones and SafeAILab's own code load it without a word and "
        "draft noise.**"
    )


def _training(
    config: TrainingConfig, progress: RunProgress, steps: Sequence[Mapping[str, float]], total: int
) -> str:
    how = config.optimization
    return _table(
        ("", ""),
        [
            ("steps", f"{progress.step} of {total} planned"),
            ("hours", f"{progress.seconds / 3600:.2f}"),
            ("rows of a step", f"{how.rows} of {how.row_length} tokens"),
            ("positions learnt from", int(sum(row["positions"] for row in steps))),
            ("unrolled steps", f"{how.ttt_steps}, weights {how.step_decay:g}^i"),
            *([("Muon", "for all matrices but the LM head")] if how.muon else []),
            ("AdamW", f"betas {how.beta1:g}, {how.beta2:g}; decay {how.weight_decay:g}; clip {how.clip:g}"),
            (
                "learning rate",
                f"{how.learning_rate:g}, cosine to {how.final_rate:.0%}, warm-up {how.warmup:.0%}",
            ),
            ("started from", Path(config.head.start).name),
            ("seed", how.seed),
        ],
    )


def _curves(steps: Sequence[Mapping[str, float]], evaluations: Sequence[Mapping[str, float]]) -> str:
    """Evaluations spread over the run, each with the mean loss of the steps before it."""
    count = len(evaluations)
    chosen = sorted({round(i * (count - 1) / max(_ROWS - 1, 1)) for i in range(_ROWS)}) if count else []
    names = [name for name in (steps[0] if steps else {}) if name.startswith("accuracy_")]
    rows = []
    for index in chosen:
        at = evaluations[index]
        tail = [row for row in steps if at["step"] - _TAIL < row["step"] <= at["step"]]
        means = [f"{sum(row[n] for row in tail) / len(tail):.3f}" if tail else "" for n in ("loss", *names)]
        rows.append((int(at["step"]), f"{at['accept_L']:.3f}", *means))
    columns = ("step", "accept_L", "loss", *(name.replace("_", " ") for name in names))
    return f"Loss and accuracy are means of the {_TAIL} steps before.\n\n{_table(columns, rows)}"


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
