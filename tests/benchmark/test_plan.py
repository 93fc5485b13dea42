"""Which turns a benchmark runs, which worker runs them, and how they are kept on disk."""

import json
import subprocess
import sys

import pytest

from ms_eagle.benchmark import turn_log
from ms_eagle.benchmark.plan import BUNDLED, bundled, first_turns, names, plan, shard
from ms_eagle.benchmark.turn_log import TurnLog
from ms_eagle.errors import UserError
from ms_eagle.text.prompts import read_prompts


def write(path, *questions):
    path.write_text("".join(json.dumps(question) + "\n" for question in questions))
    return path


@pytest.fixture
def files(tmp_path):
    talk = write(
        tmp_path / "talk.jsonl",
        {"question_id": 7, "category": "writing", "turns": ["a", "b"]},
        {"question_id": 5, "turns": ["c", "d"]},
    )
    return talk, write(tmp_path / "code.jsonl", {"question_id": 7, "turns": ["e"]})


def test_the_plan_keeps_the_order_and_names_every_turn(files):
    questions = plan(files)
    assert names(questions) == ["talk:7/1", "talk:7/2", "talk:5/1", "talk:5/2", "code:7/1"]
    assert [q.category for q in questions] == ["writing", "talk", "code"]
    assert [q.number for q in questions] == [0, 1, 2]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (3, 3), (4, 4), (5, 5), (9, 5)])
def test_a_limit_counts_turns(files, limit, count):
    assert names(plan(files, limit)) == names(plan(files))[:count]


def test_a_limit_takes_questions_across_categories(tmp_path):
    asked = [(category, f"{category}{n}") for category in "abc" for n in range(4)]
    file = write(tmp_path / "x.jsonl", *({"category": c, "turns": [text]} for c, text in asked))
    assert [q.turns for q in plan([file], 5)] == [("a0",), ("a1",), ("b0",), ("b1",), ("c0",)]
    assert [q.number for q in plan([file], 5)] == list(range(5))


def test_who_begins_alternates_over_questions_and_over_turns(files):
    """Otherwise every second turn would have the same engine first."""
    first = [[q.teacher_first(t) for t in range(len(q.turns))] for q in plan(files)]
    assert first == [[True, False], [False, True], [True]]


def test_names_that_would_mix_up_turns_are_refused_or_numbered(tmp_path, files):
    with pytest.raises(UserError, match="two files are named talk"):
        plan([files[0], files[0]])
    twice = write(
        tmp_path / "x.jsonl", {"question_id": 1, "turns": ["a"]}, {"question_id": 1, "turns": ["b"]}
    )
    assert [question.key for question in plan([twice])] == ["x:1", "x:1-2"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_question_belongs_to_exactly_one_worker(files, ranks):
    questions = plan(files)
    parts = [shard(questions, rank, ranks) for rank in range(ranks)]
    assert sorted((q for part in parts for q in part), key=lambda q: q.number) == questions


def test_profiled_turns_are_first_turns_from_all_over_the_plan(files):
    assert names(first_turns(plan(files), 2)) == ["talk:7/1", "code:7/1"]
    assert names(first_turns(plan(files), 9)) == ["talk:7/1", "talk:5/1", "code:7/1"]


def test_the_bundled_prompts_are_a_short_plan_that_no_head_was_trained_on():
    questions = plan(bundled())
    assert 8 <= len(names(questions)) <= 16
    asked = {turn for question in questions for turn in question.turns}
    for path in BUNDLED.parent.glob("*.jsonl"):
        assert not asked & {turn for prompt in read_prompts(path) for turn in prompt.turns}, path


def turn(name, **more):
    return {"turn_name": name, **more}


def test_a_torn_line_is_dropped_and_the_next_one_starts_afresh(tmp_path):
    path = tmp_path / "turns.jsonl"
    log = TurnLog(path, {})
    log.add([turn("a", x=1), turn("b")])
    log.close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - 20, -3):
        path.write_bytes(whole[:cut])
        log = TurnLog(path, turn_log.collect(tmp_path))
        assert list(log.known) == ["a"]
        log.add([turn("c")])
        log.close()
        assert [record["turn_name"] for record in turn_log.read(path)] == ["a", "c"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text('{"turn_name": "a"}\n{"turn\n{"turn_name": "b"}\n')
    with pytest.raises(UserError, match=r"turns\.jsonl:2: not the record of a turn"):
        turn_log.read(path)
    path.write_text('{"turn_name": 3}\n')
    with pytest.raises(UserError, match=r"turns\.jsonl:1: .*turn_name"):
        turn_log.read(path)


def test_two_processes_do_not_write_one_file(tmp_path):
    log = TurnLog(tmp_path / "turns.jsonl", {})
    with pytest.raises(UserError, match="another benchmark is writing there"):
        TurnLog(tmp_path / "turns.jsonl", {})
    log.close()
    TurnLog(tmp_path / "turns.jsonl", {}).close()


def test_a_failed_turn_is_not_done_and_never_replaces_a_measured_one(tmp_path):
    failed = {"error": {"kind": "E", "message": "m"}}
    first = TurnLog(turn_log.rank_file(tmp_path, 0), {})
    first.add([turn("a", **failed), turn("b", x=1)])
    second = TurnLog(turn_log.rank_file(tmp_path, 1), {})
    second.add([turn("a", x=2), turn("b", **failed), turn("c", **failed)])
    for log in (first, second):
        log.close()
    known = turn_log.collect(tmp_path)
    assert known == {"a": turn("a", x=2), "b": turn("b", x=1), "c": turn("c", **failed)}
    log = TurnLog(tmp_path / "turns.jsonl", known)
    assert [log.measured(name) for name in "abcd"] == [True, True, False, False]
    log.close()


def test_a_killed_worker_lets_go_and_what_it_wrote_is_kept(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from ms_eagle.benchmark import turn_log as t\n"
        "log = t.TurnLog(t.rank_file(Path(sys.argv[1]), 1), {})\n"
        "log.add([{'turn_name': 'a'}]); print('written', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker_process:
        assert worker_process.stdout.readline() == "written\n"
        looks = []

        def kill_at_the_third_look():
            looks.append(None)
            if len(looks) == 3:
                worker_process.kill()

        assert turn_log.await_workers(tmp_path, [1], 0.0, kill_at_the_third_look) == []
    assert len(looks) >= 3
    assert turn_log.collect(tmp_path) == {"a": turn("a")}


def test_merging_follows_the_plan_and_leaves_one_file(tmp_path):
    for rank, own in enumerate([["c", "a"], ["b"]]):
        log = TurnLog(turn_log.rank_file(tmp_path, rank), {})
        log.add([turn(name) for name in own])
        log.close()
    assert turn_log.await_workers(tmp_path, [1], 0.0) == []
    assert turn_log.await_workers(tmp_path, [1, 2], 0.0) == [2]
    merged = turn_log.merge(tmp_path, ["a", "b", "c", "d"])
    assert [record["turn_name"] for record in merged] == ["a", "b", "c"]
    assert merged == turn_log.read(tmp_path / "turns.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["turns.jsonl"]
