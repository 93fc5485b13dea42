"""Question files made from the published files of HumanEval, MT-Bench and GSM8K.

SafeAILab's EAGLE measures on 80 questions of each: all of MT-Bench, and of the two others the ones below,
which are written here in the same order and to the same byte. They are the first 80 of
``numpy.random.default_rng(42).permutation(total)``, spelled out because numpy may draw otherwise some day.
Formats: Chen et al., "Evaluating Large Language Models Trained on Code" (2021); Zheng et al., "Judging
LLM-as-a-Judge with MT-Bench and Chatbot Arena" (2023); Cobbe et al., "Training Verifiers to Solve Math Word
Problems" (2021).
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_eagle.errors import UserError
from ms_eagle.text.prompts import parse_line, parse_prompts

INSTRUCTION = "Complete the code I provided."  # nothing follows it: the prompts begin as they begin


@dataclass(frozen=True)
class Published:
    """One published format.

    Attributes:
        name: as people call it.
        keys: those its lines are known by; the first of HumanEval and GSM8K identifies a question.
        chosen: the numbers of EAGLE's 80 questions, in its order; empty if they are all.
        total: how many questions are published.
        sha256: of the file of EAGLE's 80 questions.
    """

    name: str
    keys: tuple[str, ...]
    chosen: tuple[int, ...]
    total: int
    sha256: str


# fmt: off
HUMANEVAL = Published(
    "HumanEval",
    ("task_id", "prompt"),
    (
        52, 134, 51, 66, 147, 101, 24, 125, 145, 50, 38, 142, 127, 111, 46, 7,
        9, 112, 157, 70, 133, 88, 25, 3, 117, 62, 8, 33, 119, 155, 20, 161,
        37, 56, 122, 100, 144, 92, 32, 4, 156, 54, 2, 104, 126, 28, 123, 107,
        75, 12, 82, 85, 93, 0, 163, 99, 27, 115, 68, 108, 79, 81, 135, 154,
        13, 129, 98, 5, 87, 48, 143, 89, 120, 162, 149, 114, 45, 90, 18, 148,
    ),
    164,
    "ce0244e2b228339e9a11afc63a151719beede1e389fdaec7cd9751d33902180e",
)
GSM8K = Published(
    "GSM8K",
    ("question", "answer"),
    (
        30, 754, 429, 1010, 1284, 953, 751, 954, 705, 993, 1029, 917, 20, 1057, 138, 127,
        60, 387, 1163, 632, 457, 48, 618, 892, 368, 615, 1165, 184, 1139, 1220, 1059, 130,
        671, 1269, 936, 831, 582, 777, 1276, 230, 790, 556, 237, 180, 1272, 631, 967, 23,
        455, 913, 595, 1045, 80, 233, 231, 553, 82, 958, 945, 131, 473, 797, 511, 1181,
        1120, 1104, 86, 509, 756, 1124, 510, 306, 934, 142, 134, 636, 350, 1153, 1016, 719,
    ),
    1319,
    "a55920b2f2aac724241124c59e5b8e8168dbbeb2ab0fdbee17d5b0ab6db5ff27",
)
MT_BENCH = Published(
    "MT-Bench",
    ("question_id", "turns"),
    (),
    80,
    "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
)
# fmt: on
FORMATS = (HUMANEVAL, MT_BENCH, GSM8K)


@dataclass(frozen=True)
class Questions:
    """A question file that was made.

    Attributes:
        published: the format it was made from.
        text: JSONL in UTF-8, one object ``question_id, category, turns, reference`` a line; MT-Bench has a
            reference for some only.
        count: its lines.
    """

    published: Published
    text: str
    count: int

    @property
    def as_measured(self) -> bool:
        """Whether these are EAGLE's 80 questions, byte for byte."""
        return hashlib.sha256(self.text.encode()).hexdigest() == self.published.sha256


def convert(path: Path, every: bool) -> Questions:
    """Make a question file of a published one: ``.jsonl``, or the same compressed by gzip.

    Args:
        path: the published file.
        every: take every question, numbered as published, instead of EAGLE's 80.

    Raises:
        UserError: the file cannot be read, is of none of the formats, or lacks some of the 80.
    """
    records = _records(path)
    published = _format(records, path)
    if published is MT_BENCH:
        wanted = list(records)
    elif published is HUMANEVAL:
        wanted = _humaneval(_selected(_by_task(records, path), published, path, every))
    else:
        wanted = _gsm8k(_selected(dict(enumerate(records)), published, path, every))
    text = "".join(json.dumps(record) + "\n" for record in wanted)
    parse_prompts(text.encode(), str(path))
    return Questions(published, text, len(wanted))


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a published question file") from error
    lines = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    records = [parse_line(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not records:
        raise UserError(f"{path} is empty; expected a published question file")
    return records


def _format(records: Sequence[dict[str, Any]], path: Path) -> Published:
    """The one format that all lines are of."""
    for published in FORMATS:
        if all(key in records[0] for key in published.keys):
            for number, record in enumerate(records, 1):
                _check(record, published, f"{path}: question {number}")
            return published
    known = "; ".join(f"{', '.join(each.keys)} ({each.name})" for each in FORMATS)
    raise UserError(f"{path}: found the keys {', '.join(records[0])[:200]}; expected {known}")


def _check(record: dict[str, Any], published: Published, where: str) -> None:
    """What parse_prompts cannot see any more when the record is written again."""
    texts = () if published is MT_BENCH else published.keys
    for key in texts:
        if not isinstance(record.get(key), str):
            raise UserError(f'{where} of {published.name} has no text "{key}"; fetch the file again')


def _by_task(records: Sequence[dict[str, Any]], path: Path) -> dict[int, dict[str, Any]]:
    """The records by the number of their task: ``HumanEval/52``."""
    tasks = {}
    for record in records:
        number = record["task_id"].removeprefix("HumanEval/")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            found = record["task_id"][:60]
            raise UserError(f"{path}: found task_id {found!r}; expected one such as 'HumanEval/52'")
        tasks[int(number)] = record
    return tasks


def _selected(
    records: dict[int, dict[str, Any]], published: Published, path: Path, every: bool
) -> list[tuple[int, dict[str, Any]]]:
    """The records to take, each with the number it gets."""
    if every:
        return list(records.items())
    if len(records) != published.total or any(number not in records for number in published.chosen):
        raise UserError(
            f"{path} holds {len(records)} questions of {published.name}; the 80 to take are known among the"
            f" {published.total} published ones: fetch that file, or take every question with --all"
        )
    return [(position, records[number]) for position, number in enumerate(published.chosen)]


def _humaneval(selected: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "question_id": number,
            "category": "code",
            "turns": [INSTRUCTION + record["prompt"]],
            "reference": [record.get("canonical_solution", "")],
        }
        for number, record in selected
    ]


def _gsm8k(selected: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "question_id": number,
            "category": "math",
            "turns": [record["question"]],
            "reference": [record["answer"]],
        }
        for number, record in selected
    ]
