"""tools/convert_head.py, called in this process."""

import json
import runpy

import numpy as np
import pytest
from support import tiny_eagle

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.errors import UserError
from ms_eagle.paths import ROOT


@pytest.fixture(scope="module")
def convert():
    return runpy.run_path(str(ROOT / "tools" / "convert_head.py"))["main"]


@pytest.fixture
def sources(tmp_path):
    """Options that name a teacher and its head; the head."""
    model = tiny_eagle.model_dir("llama", tmp_path)
    head = tiny_eagle.head_dir(model, tmp_path)
    overrides = [f"model.source={model}", f"drafter.source={head}", "model.max_length=96"]
    return [part for each in overrides for part in ("--set", each)], model, head


def test_a_head_is_written_again(tmp_path, convert, sources, capfd):
    options, model, head = sources
    out = tmp_path / "out"
    norm = ["--set", "drafter.norm_output=true"]
    assert convert([*options, *norm, "--layout", "speculators", "--out", str(out)]) == 0
    assert capfd.readouterr().out == f"{out}: speculators, float32, for vLLM and speculators\n"
    teacher = tiny_eagle.decoder(model)
    old, new = load_head(head, teacher=teacher), load_head(out, teacher=teacher)
    assert (new.config.format, new.config.norm_output) == ("speculators", True)
    assert new.config.taps == old.config.taps
    for name, values in old.tensors.items():
        np.testing.assert_array_equal(new.tensors[name], values)
    written = json.loads((out / "config.json").read_text())
    assert written["speculators_config"]["verifier"]["name_or_path"] == str(model)
    with pytest.raises(UserError, match="exists: name a new directory"):
        convert([*options, "--layout", "speculators", "--out", str(out)])


def test_what_the_layout_cannot_say_is_refused(tmp_path, convert, sources):
    options, _, _ = sources
    refused = [
        *options,
        "--set",
        "drafter.norm_output=true",
        "--layout",
        "safeailab",
        "--out",
        str(tmp_path / "o"),
    ]
    with pytest.raises(UserError, match=r"cannot say what the head has \(norm_output.*so its readers"):
        convert(refused)
    assert not (tmp_path / "o").exists()
