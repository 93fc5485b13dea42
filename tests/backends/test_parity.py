"""The start-up probe and the self-test: right kernels pass, one that is wrong beyond 512 keys is found."""

import json
import subprocess
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from support import tiny_eagle
from support.flash_attention_stand_in import FlashAttentionStandIn

from ms_eagle.backends import choosing as device
from ms_eagle.backends import parity as attention_parity
from ms_eagle.backends.parity import Case, NativeAttention, compare, tree_mask
from ms_eagle.backends.stock import StockBackend
from ms_eagle.benchmark.selftest import selftest
from ms_eagle.kernels import fused
from ms_eagle.kernels.library import load
from ms_eagle.kernels.operators import Operators
from ms_eagle.paths import ROOT
from ms_eagle.system.progress import Progress


class BlindBeyond512(FlashAttentionStandIn):
    """Ignores its mask on caches of more than 512 slots, as an operator once did."""

    def construct(self, query, key, value, shift, drop, padding, mask):
        if key.shape[2] > 512:
            mask = ops.zeros_like(mask)
        return super().construct(query, key, value, shift, drop, padding, mask)


def test_mask_of_a_tree():
    mask = tree_mask(Case(2, 4, 2, 16, 5, 20), np.random.default_rng(0))
    assert mask.shape == (2, 1, 5, 20)
    assert not mask[:, :, :, :14].any()  # committed keys
    assert mask[:, :, :, 19].all()  # the trash slot
    own = ~mask[:, 0, :, 14:19]
    assert own.diagonal(axis1=1, axis2=2).all()
    assert not np.triu(own, 1).any()
    assert own[:, :, 0].all()  # everybody's root


@pytest.mark.parametrize("case", [Case(2, 8, 2, 64, 17, 513), Case(1, 9, 3, 64, 1, 40)])
def test_native_attention_agrees_with_eager(case):
    found = compare(NativeAttention(Operators(load(2)), case.slots), case, ms.float32)
    assert found.passed, found
    assert found.difference > 0


def test_probe_keeps_a_right_kernel_and_replaces_a_blind_one(monkeypatch):
    chosen, told = StockBackend("fused", ms.float16), []
    monkeypatch.setattr(attention_parity, "KV_LENGTHS", (513,))  # the others cost as much again
    monkeypatch.setattr(fused, "FlashAttentionScore", FlashAttentionStandIn)
    assert device.probed(chosen, 4, 2, 16, told.append) is chosen
    assert not told
    monkeypatch.setattr(fused, "FlashAttentionScore", BlindBeyond512)
    assert device.probed(chosen, 4, 2, 16, told.append).name == "eager"
    assert "at 513 keys" in told[0]
    eager = StockBackend("eager", ms.float32)
    assert device.probed(eager, 4, 2, 16, told.append) is eager


def test_a_result_that_is_not_a_number_fails():
    found = attention_parity.Found(Case(1, 1, 1, 16, 1, 1), "float32", float("nan"), 1.0)
    assert not found.passed
    assert json.loads(json.dumps(found.record()))["difference"] is None


def test_selftest_passes_on_the_cpu(tmp_path, monkeypatch):
    one = Case(1, 4, 2, 16, 3, 40)
    monkeypatch.setattr(attention_parity, "cases", lambda: iter([one]))
    stages = {"draft": 1.0, "verify": 2.0}  # the profile has tests of its own
    monkeypatch.setattr("ms_eagle.benchmark.selftest.profile", lambda *_: {"stage_ms": stages})
    model = tiny_eagle.model_dir("qwen3", tmp_path)
    config = tiny_eagle.config(model, tiny_eagle.head_dir(model, tmp_path), ["generation.max_new_tokens=8"])
    outcome = selftest(config, Progress(quiet=True))
    assert outcome.passed
    report = json.loads(json.dumps(outcome.report))
    assert report["kernel_parity"]["cases"][0]["passed"]
    assert report["lossless"] == {"answers": 8, "tokens_each": 32, "different": []}
    assert report["stage_ms"] == stages
    assert outcome.lines[len(outcome.lines) - 1].endswith("passed")


@pytest.mark.slow
def test_selftest_tool_writes_its_report(tmp_path):
    model = tiny_eagle.model_dir("qwen3", tmp_path)
    tiny_eagle.config(model, tiny_eagle.head_dir(model, tmp_path))
    tool = ROOT / "tools" / "selftest.py"
    options = ["--config", tmp_path / "tiny_eagle.yaml", "--drafter", tmp_path / "head"]
    options += ["--set", "tree.budget=6", "--set", "tree.branch=3", "--set", "tree.depth=3"]
    options += ["--set", "generation.max_new_tokens=8", "--out", tmp_path / "report.json"]
    done = subprocess.run([sys.executable, tool, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"]
    assert len(report["kernel_parity"]["cases"]) == 36
    assert set(report["stage_ms"]) >= {"draft", "verify", "commit"}
