"""The MindFormers example, installed from a wheel in a virtual environment, outside the repository."""

import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ms_eagle.paths import ROOT

PARTS = ("ms_eagle", "kernels", "pyproject.toml", "README.md", "LICENSE")


def run(*command, cwd):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.real_model
def test_the_example_runs_from_a_wheel(smollm2, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "kernels") if part == "ms_eagle" else None
            shutil.copytree(ROOT / part, source / part, ignore=skipped)
        else:
            shutil.copy(ROOT / part, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("ms_eagle-*.whl")

    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    # Its dependencies come from here; an editable install of ms_eagle here is not seen that way.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    elsewhere.mkdir()
    shutil.copy(ROOT / "examples" / "mindformers_pipeline.py", elsewhere)
    python = venv / "bin" / "python"
    where = "import ms_eagle, sys; print(ms_eagle.__file__, 'mindformers' in sys.modules)"
    found, imported = run(python, "-I", "-c", where, cwd=elsewhere).split()
    assert (Path(found), imported) == (packages / "ms_eagle" / "__init__.py", "False")
    out = run(python, "-I", "mindformers_pipeline.py", cwd=elsewhere)
    assert "The capital of France is Paris" in out
    assert "accepted draft tokens" in out
    assert len(out.split("-- two prompts at once")[1].strip().splitlines()) >= 4
