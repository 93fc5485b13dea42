"""Which turns a benchmark answers, in what order, and which of them belong to a worker."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.paths import CONFIGS
from ms_eagle.text.prompts import read_prompts

BUNDLED = CONFIGS / "prompts" / "benchmark"


@dataclass(frozen=True)
class Question:
    """One conversation of a plan.

    Attributes:
        key: its name in a run, file and question, such as ``mt_bench:81``.
        source: the file's name without its ending.
        category: the question's own, else the file's name.
        turns: the user's messages that are answered.
        where: file and line, for errors.
        number: its place in the plan, from 0; decides which engine begins.
    """

    key: str
    source: str
    category: str
    turns: tuple[str, ...]
    where: str
    number: int

    def name(self, turn: int) -> str:
        """The name of a turn, counted from 0: ``mt_bench:81/1`` is the first."""
        return f"{self.key}/{turn + 1}"

    def teacher_first(self, turn: int) -> bool:
        """Whether the teacher alone answers first; alternates over questions and over turns."""
        return (self.number + turn) % 2 == 0


def plan(files: Sequence[Path], limit: int | None = None) -> list[Question]:
    """All questions of prompt files, in order; with ``limit`` so many turns, across categories.

    Raises:
        UserError: a file cannot be read or is not of the form of ``prompts``; two files have one name.
    """
    names = Counter(file.stem for file in files)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UserError(
            f"--prompts: two files are named {twice}; expected different names, which tell turns apart"
        )
    questions: list[Question] = []
    for file in files:
        for prompt in read_prompts(file):
            key, where = f"{file.stem}:{prompt.question_id}", f"{file}:{prompt.line}"
            category = prompt.category or file.stem
            questions.append(Question(key, file.stem, category, prompt.turns, where, len(questions)))
    return questions if limit is None else _limited(questions, limit)


def _limited(questions: Sequence[Question], limit: int) -> list[Question]:
    """Questions of ``limit`` turns together, from every category in turn, in the order that they had."""
    queues: dict[str, list[Question]] = {}
    for question in questions:
        queues.setdefault(question.category, []).append(question)
    rounds = [each for row in zip_longest(*queues.values()) for each in row if each is not None]
    chosen: list[Question] = []
    for question in rounds:
        if limit > 0:
            chosen.append(replace(question, turns=question.turns[:limit]))
            limit -= len(question.turns)
    chosen.sort(key=lambda question: question.number)
    return [replace(question, number=number) for number, question in enumerate(chosen)]


def shard(questions: Sequence[Question], rank: int, ranks: int) -> list[Question]:
    """The questions of one of ``ranks`` workers: every one of them belongs to exactly one."""
    return [question for question in questions if question.number % ranks == rank]


def names(questions: Sequence[Question]) -> list[str]:
    """The names of all turns, in the order of the plan."""
    return [question.name(turn) for question in questions for turn in range(len(question.turns))]


def first_turns(questions: Sequence[Question], count: int) -> list[Question]:
    """The first turns of ``count`` questions, spread evenly over the plan."""
    count = min(count, len(questions))
    chosen = [questions[(2 * i + 1) * len(questions) // (2 * count)] for i in range(count)]
    return [replace(question, turns=question.turns[:1]) for question in chosen]


def bundled() -> list[Path]:
    """The prompt files that come with the project.

    Raises:
        UserError: they are not there, as in an installation without the checkout.
    """
    files = sorted(BUNDLED.glob("*.jsonl"))
    if not files:
        raise UserError(f"--prompts is missing, and there are no prompt files in {BUNDLED}: name some")
    return files
