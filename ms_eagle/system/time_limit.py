"""A limit to the time that Python code of unknown origin may take, on any thread."""

import contextlib
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the Python functions that are called inside when they have taken too long together.

    It looks at the clock at every line, so a single call of native code is not cut short.

    Raises:
        TimeoutError: from inside.
    """
    deadline, before = time.monotonic() + seconds, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it takes more than {seconds:g} s")
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
