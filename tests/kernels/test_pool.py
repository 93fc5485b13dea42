"""The thread pool under jobs of changing size, one right after another: each item runs once, none is lost."""

import subprocess
import sys

# In a process of its own: a job whose count went wrong would wait for ever.
PROGRAM = """
import numpy as np
from ms_eagle.kernels.library import ABSENT, load

library = load(4)
rng = np.random.default_rng(0)
weights = [rng.standard_normal((size, 64)).astype(np.float32) for size in (40, 1024, 96, 200)]
packed = [library.pack(weight) for weight in weights]
x, eps = rng.standard_normal((1, 3, 64)).astype(np.float32), np.zeros(1, np.float32)
first = None
for _ in range(15_000):
    out = [np.full((1, 3, len(weight)), np.nan, np.float32) for weight in weights]
    for panels, result in zip(packed, out):
        library.call("LinearRows", (x, ABSENT, panels, ABSENT, eps), (result,))
    first = out if first is None else first
    assert all(np.array_equal(a, b) for a, b in zip(first, out))
np.testing.assert_allclose(first[1], x @ weights[1].T, atol=1e-4)
print("done")
"""


def test_jobs_of_changing_size_end_and_are_whole():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
