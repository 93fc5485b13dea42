"""A bundle of a tiny model, made once for all tests here."""

import shutil
from pathlib import Path

import pytest
from support import tiny_eagle

from ms_eagle.deployment.export import export_bundle
from ms_eagle.system.progress import Progress
from ms_eagle.tree.shape import TreeShape


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("deployment")
    model = tiny_eagle.model_dir("qwen3", root)
    return tiny_eagle.config(model, tiny_eagle.head_dir(model, root))


@pytest.fixture(scope="session")
def made(config, tmp_path_factory):
    """A bundle for the CPU with two tree shapes."""
    out = tmp_path_factory.mktemp("bundles") / "tiny.bundle"
    export_bundle(config, "cpu", out, Progress(quiet=True), trees=[TreeShape(4, 2, 2)])
    return out


@pytest.fixture
def copy(made, tmp_path):
    """A bundle to damage."""
    return Path(shutil.copytree(made, tmp_path / "copy.bundle"))
