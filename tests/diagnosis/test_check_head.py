"""tools/check_head.py as a process."""

import json
import os
import subprocess
import sys

import pytest
from support import tiny_eagle

from ms_eagle.paths import ROOT
from ms_eagle.system import quiet

TOOL = ROOT / "tools" / "check_head.py"


def run(here, *arguments):
    kept = {*quiet._PLACES, "GLOG_v"}  # set for the test process by its own quiet start
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    done = subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)],
        cwd=here,
        capture_output=True,
        timeout=240,
        env=environment,
        text=True,
    )
    assert list(here.iterdir()) == []
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def here(tmp_path):
    directory = tmp_path / "here"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A configuration of a tiny teacher with a random head."""
    root = tmp_path_factory.mktemp("check_head")
    model = tiny_eagle.model_dir("llama", root)
    head = tiny_eagle.head_dir(model, root)
    path = root / "c.yaml"
    path.write_text(
        f"model: {{source: {model}, max_length: 96}}\n"
        f"drafter: {{source: {head}}}\n"
        "tree: {budget: 3, depth: 2, branch: 2}\nexecution: {device: CPU}\n"
    )
    return path


def refusal(here, *arguments):
    status, out, err = run(here, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ")


def test_refusals_before_anything_is_loaded(here, config, tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    for arguments, message in (
        (["--text", "none.txt"], "--text none.txt: No such file or directory"),
        (["--text", str(latin)], f"--text {latin}: byte 3 is not UTF-8"),
        (["--prompt", "a"], "unrecognized arguments: --prompt a"),
        (["--set", "drafter.sorce=x"], "--set: unknown key drafter.sorce"),
    ):
        assert refusal(here, "--config", config, *arguments).startswith(message)


def test_a_head_that_cannot_be_loaded(here, config, tmp_path):
    line = refusal(here, "--config", config, "--set", f"drafter.source={tmp_path / 'none'}")
    assert line.startswith("drafter.source: the head ")


def test_json_of_a_text(here, config, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and the dog looks up. naïve café\n")
    status, out, err = run(here, "--config", config, "--text", text, "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["format"] == "SpecForge"
    assert found["taps"] == [0, 1]
    assert found["text"] == str(text)
    assert found["verdict"]["code"] == "low"
    assert found["depths"][0]["positions"] > 5
    documented = (TOOL.parent.parent / "docs" / "check_head.md").read_text()
    for field in found:
        assert field in documented.partition("## Fields of --json")[2]
