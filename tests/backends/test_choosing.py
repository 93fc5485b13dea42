"""Choosing kernels and number formats: what each device gets, and what is refused."""

import mindspore as ms
import pytest

from ms_eagle.backends import choosing as device
from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.config.sections import ExecutionSection
from ms_eagle.errors import UserError
from ms_eagle.kernels import build
from ms_eagle.models.backend import Formats
from ms_eagle.system import settings as context


def choose(name, where="CPU", number=ms.float32, told=None):
    notice = (lambda line: told.append(line)) if told is not None else pytest.fail
    return device.backend(name, where, number, threads=1, strays=3, notice=notice)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """A machine without a compiler and without kernels built before."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "where", "number", "kernels"),
    [
        ("auto", "Ascend", ms.bfloat16, "fused"),
        ("auto", "Ascend", ms.float32, "eager"),
        ("auto", "CPU", ms.float16, "eager"),
        ("eager", "CPU", ms.float32, "eager"),
        ("fused", "Ascend", ms.float16, "fused"),
    ],
)
def test_stock_kernels(name, where, number, kernels):
    chosen = choose(name, where, number)
    assert isinstance(chosen, StockBackend)
    assert (chosen.name, chosen.formats) == (kernels, Formats.uniform(number))


@pytest.mark.parametrize("name", ["auto", "native"])
def test_a_cpu_computes_with_our_own(name):
    assert isinstance(choose(name), NativeBackend)


def test_without_a_compiler_auto_says_so_and_falls_back(no_compiler):
    told = []
    assert choose("auto", told=told).name == "eager"
    assert len(told) == 1
    assert "no C++ compiler" in told[0]
    assert "apt install g++" in told[0]
    assert "\n" not in told[0]


def test_without_a_compiler_native_is_refused(no_compiler):
    with pytest.raises(UserError, match=r"kernels is native: no C\+\+ compiler.*set execution.kernels=eager"):
        choose("native")


def test_a_failing_build_falls_back(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_compiler", lambda: "/bin/false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []
    assert choose("auto", told=told).name == "eager"
    assert "/bin/false failed with status 1" in told[0]


@pytest.mark.parametrize(
    ("name", "where", "number", "message"),
    [
        ("fused", "CPU", ms.float16, "runs on Ascend NPUs only"),
        ("fused", "Ascend", ms.float32, "takes float16 or bfloat16"),
        ("native", "Ascend", ms.float32, "float32 on the CPU only"),
        ("native", "CPU", ms.float16, "float32 on the CPU only"),
    ],
)
def test_refused_combinations(name, where, number, message):
    with pytest.raises(UserError, match=message):
        choose(name, where, number)


def test_number_formats():
    assert device.dtype("float16", "CPU") == ms.float16
    assert device.dtype("bfloat16", "Ascend") == ms.bfloat16
    with pytest.raises(UserError, match="bfloat16, for which MindSpore has no CPU kernels"):
        device.dtype("bfloat16", "CPU")


def test_an_npu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"MindSpore finds no Ascend NPU here: set execution\.device=CPU"):
        device.start("Ascend", None)
    assert device.start("auto", None) == "CPU"


def test_settings_of_a_configuration_reach_mindspore(monkeypatch):
    told = []
    monkeypatch.setattr(context.ms, "set_device", lambda *given: told.append(("device", *given)))
    monkeypatch.setattr(context.ms, "set_context", lambda **given: told.append(given))
    monkeypatch.setattr(context.ms, "set_deterministic", lambda on: told.append(("deterministic", on)))
    monkeypatch.setattr(context.ms.runtime, "set_memory", lambda max_size: told.append(max_size))
    execution = ExecutionSection(device_id=3, jit_level="O1", memory_limit=56.5, deterministic=True)
    context.start("CPU", 2, execution)
    assert ("device", "CPU", 3) in told
    assert {"jit_config": {"jit_level": "O1"}} in told
    assert "56.5GB" in told
    assert ("deterministic", True) in told
    told.clear()
    context.start("CPU", 2, ExecutionSection())
    assert told == [("device", "CPU"), {"mode": context.ms.GRAPH_MODE}]
