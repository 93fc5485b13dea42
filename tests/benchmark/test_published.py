"""Question files made of published ones."""

import gzip
import json
import runpy

import pytest

from ms_eagle.benchmark.published import GSM8K, HUMANEVAL, convert
from ms_eagle.errors import UserError
from ms_eagle.paths import ROOT
from ms_eagle.text.prompts import parse_prompts


def jsonl(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def humaneval(numbers=range(164)):
    return [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f"def f{n}():\n",
            "canonical_solution": f"    {n}\n",
            "test": "",
        }
        for n in numbers
    ]


def gsm8k(count=1319):
    return [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(count)]


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def write(tmp_path):
    def write(data, name="published.jsonl"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_humaneval_gives_the_80_problems_in_eagles_order(write, pack):
    questions = convert(write(pack(jsonl(reversed(humaneval())))), every=False)
    assert lines(questions.text)[0] == {
        "question_id": 0,
        "category": "code",
        "turns": ["Complete the code I provided.def f52():\n"],
        "reference": ["    52\n"],
    }
    assert [line["reference"] for line in lines(questions.text)] == [[f"    {n}\n"] for n in HUMANEVAL.chosen]
    assert [line["question_id"] for line in lines(questions.text)] == list(range(80))
    assert not questions.as_measured  # the problems are made up


def test_gsm8k_gives_the_80_questions_by_line(write):
    questions = convert(write(b"\xef\xbb\xbf" + jsonl(gsm8k())), every=False)
    assert lines(questions.text)[0] == {
        "question_id": 0,
        "category": "math",
        "turns": ["30 + 1?"],
        "reference": ["#### 31"],
    }
    assert [line["turns"] for line in lines(questions.text)] == [[f"{n} + 1?"] for n in GSM8K.chosen]


def test_mt_bench_stays_as_it_is(write):
    published = jsonl([{"question_id": 81, "category": "writing", "turns": ["a \u2019", "b"]}])
    assert convert(write(published), every=False).text.encode() == published


@pytest.mark.parametrize("records", [humaneval(), gsm8k(7)], ids=["humaneval", "gsm8k"])
def test_all_takes_every_question_under_its_own_number(write, records):
    made = parse_prompts(convert(write(jsonl(records)), every=True).text.encode(), "made")
    assert [prompt.question_id for prompt in made] == list(range(len(records)))


@pytest.mark.parametrize("published", [HUMANEVAL, GSM8K])
def test_the_80_are_different_and_published(published):
    assert len(set(published.chosen)) == 80
    assert max(published.chosen) < published.total


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jsonl(humaneval(range(1, 164))), "holds 163 questions of HumanEval; .* --all"),
        (jsonl(gsm8k(80)), "holds 80 questions of GSM8K; .* among the 1319 published"),
        (jsonl([{"text": "a"}]), r"found the keys text; expected task_id, prompt \(HumanEval\);"),
        (jsonl(gsm8k(1) + humaneval([0])), 'question 2 of GSM8K has no text "question"'),
        (jsonl([{"task_id": "MBPP/x", "prompt": "a"}]), "found task_id 'MBPP/x'; expected"),
        (jsonl([{"question_id": 1, "turns": []}]), '"turns" is an empty list'),
        (jsonl([{"question": " ", "answer": "b"}] * 1319), "turn 1 is empty"),
        (b"{", ":1: not valid JSON"),
        (b"\n", "is empty; expected"),
        (gzip.compress(jsonl(humaneval()))[:100], "is damaged or cut short"),
    ],
)
def test_other_files_are_refused_in_a_line(write, data, message):
    with pytest.raises(UserError, match=message) as refused:
        convert(write(data), every=False)
    assert "\n" not in str(refused.value)


def test_the_tool_writes_the_file_and_says_whether_it_is_the_measured_one(write, tmp_path, capsys):
    main = runpy.run_path(str(ROOT / "tools" / "convert_questions.py"))["main"]
    made = tmp_path / "humaneval.jsonl"
    assert main([str(write(jsonl(humaneval()))), "--out", str(made)]) == 0
    assert len(made.read_bytes().splitlines()) == 80
    told = capsys.readouterr()
    assert f"{made}: 80 questions of HumanEval" in told.out
    assert HUMANEVAL.sha256 in told.err
    with pytest.raises(UserError, match="--out"):
        main([str(made), "--out", str(made)])
