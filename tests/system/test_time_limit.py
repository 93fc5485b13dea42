"""Code that never ends is ended."""

import sys

import pytest

from ms_eagle.system.time_limit import time_limit


def test_a_loop_in_a_function_ends_and_the_tracer_of_before_is_back():
    def forever():
        while True:
            pass

    before = sys.gettrace()
    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"), time_limit(0.05):
        forever()
    assert sys.gettrace() is before
    with time_limit(60):
        assert sorted([2, 1]) == [1, 2]
