"""The Trainer example of docs/mindformers.md in an empty directory, which stays empty."""

import json
import os
import re
import subprocess
import sys

from support import tiny_eagle

from ms_eagle.mindformers.plugin import DIRECTORY
from ms_eagle.paths import CONFIGS, ROOT
from ms_eagle.system import quiet

SHIPPED = CONFIGS / "mindformers" / "predict_smollm2_135m.yaml"


def example():
    """The code block of the page that starts a Trainer."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "mindformers.md").read_text(), re.S)
    (block,) = [each for each in blocks if "Trainer(" in each]
    return block


def configuration(tmp_path):
    """The shipped file for a tiny teacher, with all that it writes below ``output``."""
    model = tiny_eagle.model_dir("llama", tmp_path)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"pad_token": "<|im_end|>"}))
    changes = {
        "'./output": f"'{tmp_path / 'output'}",
        "'/path/hf_dir'": f"'{model}'",
        "bundled:smollm2_135m": str(tiny_eagle.head_dir(model, tmp_path)),
        "seq_length: 2048": "seq_length: 64",
        "max_new_tokens: 128": "max_new_tokens: 4",
    }
    text = SHIPPED.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "predict.yaml"
    path.write_text(text)
    return path


def test_a_trainer_leaves_nothing_in_the_working_directory(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    program = example().replace("configs/mindformers/predict_smollm2_135m.yaml", str(configuration(tmp_path)))
    assert str(tmp_path) in program
    environment = {name: value for name, value in os.environ.items() if name not in quiet._PLACES}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "REGISTER_PATH": str(DIRECTORY)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(here.iterdir()) == []
    assert (tmp_path / "output" / "text_generation_result.txt").read_text().startswith("[")
