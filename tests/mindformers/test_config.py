"""The MindFormers path's configuration, the files that come with it, and the versions it takes."""

import ast
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ms_eagle.config.sections import load_config
from ms_eagle.errors import UserError
from ms_eagle.mindformers import EagleConfig, version
from ms_eagle.mindformers.plugin import DIRECTORY
from ms_eagle.paths import CONFIGS, ROOT

# isort: split
from mindformers import MindFormerConfig

DOCS = ROOT / "docs" / "mindformers.md"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "teacher is missing"),
        ({"teacher": "x", "eagle": {"drafter": {"kynd": "none"}}}, "unknown key drafter.kynd"),
        ({"teacher": "x", "eagle": {"generation": {}}}, "unknown section generation"),
        ({"teacher": "x", "eagle": {"tree": 5}}, "expected the sections"),
        ({"teacher": "x", "checkpoint_name_or_path": "a.ckpt"}, "not .ckpt files"),
        ({"teacher": "x", "softmax_compute_dtype": "float16"}, "softmax_compute_dtype is float16"),
        ({"teacher": "x", "compute_dtype": "int8"}, "model_config.compute_dtype is the text 'int8'"),
        ({"teacher": "x", "seq_length": "96"}, "model_config.seq_length is the text '96'"),
        ({"teacher": "x", "eagel": {"tree": {}}}, "did you mean eagle"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(options, message):
    with pytest.raises(UserError, match=message):
        EagleConfig(**options).engine_config()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("mindformers/*.yaml")), ids=lambda path: path.stem)
def test_the_predict_files_are_sound(path):
    settings = MindFormerConfig(str(path))
    assert settings.use_legacy is False
    config = EagleConfig(**settings.model.model_config.to_dict(), pretrained_model_dir="/").engine_config()
    twin = load_config(CONFIGS / f"{path.stem.removeprefix('predict_')}.yaml")
    assert config.model.dtype == twin.model.dtype
    assert config.execution.device == settings.context.device_target


def test_the_documented_register_path_is_the_plugin(tmp_path):
    (command,) = [line for line in DOCS.read_text().splitlines() if line.startswith("export REGISTER_PATH")]
    script = f'{command.replace("python", shlex.quote(sys.executable), 1)}; echo "$REGISTER_PATH"'
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{DIRECTORY}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("found", ["1.8.0", None])
def test_another_mindformers_is_refused(monkeypatch, found):
    def lookup(name):
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", lookup)
    with pytest.raises(UserError, match=r"works with version 1\.9\.0"):
        version.check_version()


def test_nothing_else_in_the_package_imports_it():
    package = Path(version.__file__).parent.parent
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "mindformers"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any("mindformers" in name.split(".") for name in names), path
