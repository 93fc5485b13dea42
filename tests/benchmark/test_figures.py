"""The summary's numbers against a hand-written run."""

import numpy as np
import pytest
from support.turns import DIFFERENCE, TURNS, turn

from ms_eagle.benchmark.figures import by_depth, quantiles, summary, throughput
from ms_eagle.benchmark.text import lines


@pytest.fixture(scope="module")
def whole():
    return summary(TURNS, {"verify": 3.0}, {"drafter": "synthetic"})


def test_the_keys_that_scripts_rely_on_come_first(whole):
    keys = [
        "turns",
        "tokens_match",
        "speedup",
        "accept_L",
        "tau",
        "baseline_tps",
        "speculative_tps",
        "stage_ms",
        "manifest",
    ]
    assert list(whole)[: len(keys)] == keys
    assert list(whole["speedup"]) == ["mean", "p1", "p10", "p50", "p90", "p99"]
    assert list(whole["accept_L"]) == ["mean", "p50", "p90", "p99"]


def test_figures(whole):
    assert (whole["turns"], whole["failed"], whole["new_tokens"]) == (3, 1, 30)
    assert whole["tokens_match"] == pytest.approx(2 / 3)
    assert whole["speedup"]["mean"] == pytest.approx(3.5 / 3)
    assert whole["accept_L"]["mean"] == 1.0  # over cycles, not over turns
    assert whole["tau"] == 2.0
    assert whole["baseline_tps"] == pytest.approx(30 / 3)
    assert whole["speculative_tps"] == pytest.approx(30 / (0.5 + 2 + 1))
    assert whole["slower_than_teacher"] == pytest.approx(1 / 3)
    assert whole["by_category"]["code"] == {
        "turns": 2,
        "tokens_match": 0.5,
        "speedup": 0.75,
        "accept_L": pytest.approx(2 / 3),
        "new_tokens": 20,
    }
    assert whole["differences"] == [{"turn_name": "t:2/1", **DIFFERENCE}]
    assert whole["failures"] == [{"turn_name": "t:3/1", "kind": "UserError", "message": "too long"}]


def test_p1_is_the_slow_tail_and_p99_the_best_turns():
    speeds = np.random.default_rng(0).permutation(np.linspace(1.0, 2.0, 101)).tolist()
    found = summary([turn(i, s, [1]) for i, s in enumerate(speeds)], None, {})
    assert found["speedup"] == pytest.approx(
        {"mean": 1.5, "p1": 1.01, "p10": 1.1, "p50": 1.5, "p90": 1.9, "p99": 1.99}
    )
    assert "p1 is exceeded by 99 % of the turns" in found["labels"]["speedup"]
    text = "\n".join(lines(found))
    assert "slow tail p1 1.01" in text
    assert "best p99 1.99" in text


def test_acceptance_by_depth():
    assert by_depth([0, 0, 1, 3]) == [
        {"depth": 1, "share": 0.5, "given_parent": 0.5},
        {"depth": 2, "share": 0.25, "given_parent": 0.5},
        {"depth": 3, "share": 0.25, "given_parent": 1.0},
    ]
    assert by_depth([]) == by_depth([0]) == []


def test_turns_decoded_together_share_their_time():
    together = [turn(0, 1.0, [1], seconds=4.0), turn(0, 1.0, [1], seconds=5.0), turn(9, 1.0, [1])]
    assert throughput(together, "teacher") == pytest.approx(30 / 6)


def test_a_longer_speculative_answer_counts_its_own_tokens():
    longer = turn(0, 2.0, [1], speculative_token_ids=[1] * 14)
    assert throughput([longer], "teacher") == 10
    assert throughput([longer], "speculative") == 28


def test_a_run_without_turns_has_no_figures_and_no_warnings(recwarn):
    found = summary(TURNS[3:], None, {})
    assert (found["turns"], found["tokens_match"], found["tau"], found["baseline_tps"]) == (
        0,
        None,
        None,
        None,
    )
    assert set(found["speedup"].values()) == {None}
    assert quantiles([], (1,)) == {"p1": None}
    assert lines(found)[0] == "0 turns measured, 1 failed"
    assert not recwarn.list


def test_a_scripted_drafter_is_named_first(whole):
    assert lines(whole)[0].startswith("Synthetic drafter")
