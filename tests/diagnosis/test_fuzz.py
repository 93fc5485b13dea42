"""Random engines for a minute, and that the search finds what is wrong."""

import subprocess
import sys
from pathlib import Path

from support import tiny_engine

from ms_eagle.diagnosis import fuzz
from ms_eagle.models.commit import KeepOrder

ROOT = Path(__file__).parents[2]


def test_a_minute_of_random_engines():
    command = [sys.executable, "tools/fuzz.py", "--minutes", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    engines, answers, cycles = (int(word) for word in ended.stdout.split() if word.isdigit())
    assert answers == engines * 24
    assert cycles > engines


def test_a_case_is_the_same_again_and_others_differ():
    assert fuzz.draw_case(3, 5) == fuzz.draw_case(3, 5)
    assert len({repr(fuzz.draw_case(3, number).tiers) for number in range(20)}) > 10


def test_rows_that_are_not_committed_are_found():
    number = next(n for n in range(1000) if _branches(fuzz.draw_case(0, n)))
    case = fuzz.draw_case(0, number)
    cycles, faults = fuzz.check(case, fuzz.build(case, tiny_engine.DEFAULT, KeepOrder))
    assert cycles > 0
    assert any("tokens" in fault for fault in faults)
    report = fuzz.Fault(case, faults[0]).report("auto")
    assert f"python tools/fuzz.py --seed 0 --first {number} --engines 1 --kernels auto" in report


def _branches(case: fuzz.Case) -> bool:
    """Whether accepted rows lie apart in the tree, which a commit must bring together."""
    return (
        case.acceptance == 0.7
        and case.capacity > 50
        and all(t.branch > 2 and t.budget > 9 for t in case.tiers)
    )
