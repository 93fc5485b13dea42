"""A model against itself in another format of weights."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from support import tiny_eagle

from ms_eagle.diagnosis import quality
from ms_eagle.errors import UserError
from ms_eagle.loading import open_model
from ms_eagle.paths import ROOT
from ms_eagle.system.progress import Progress

QUIET = Progress(quiet=True)
WIDE = dict(hidden_size=64, intermediate_size=96, head_dim=16, max_position_embeddings=700)
TEXT = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 2


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    root = tmp_path_factory.mktemp("quality")
    model = tiny_eagle.model_dir("llama", root, **WIDE)
    return tiny_eagle.config(model, None, ["model.max_length=700"])


def test_codes_are_compared_with_the_values(configured):
    import transformers

    values, codes = quality.compare(configured, ("int8", "float32"), "float32", TEXT, QUIET)
    assert (values.format, values.divergence, values.top, values.answers) == ("float32", 0, 1, (64,) * 3)
    assert codes.format == "int8"
    assert 0 < codes.divergence < 0.01
    assert codes.weight_bytes < values.weight_bytes / 2.5
    model = open_model(configured, QUIET)
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    peer = transformers.AutoModelForCausalLM.from_pretrained(model.files.directory, dtype=torch.float32)
    with torch.no_grad():
        loss = peer(ids, labels=ids).loss
    np.testing.assert_allclose(values.perplexity, float(torch.exp(loss)), rtol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [((1, 2, 3), (1, 2, 4), 2), ((5,), (1,), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (1, 2), 64), ((), (1,), 0)],
)
def test_answers_agree_up_to_the_first_difference(ours, theirs, common):
    assert quality._common(ours, theirs) == common


def test_a_text_of_a_word_is_refused(configured):
    with pytest.raises(UserError, match="the text has 2 tokens; expected at least 3"):
        quality.compare(configured, ("int8",), "float32", "a", QUIET)


def test_mistakes_on_the_command_line_are_one_line(tmp_path):
    for arguments, fact in (
        (["--text", str(tmp_path / "absent")], "absent"),
        (["--formats", "int3"], "int3"),
    ):
        command = [sys.executable, "tools/check_model.py", *arguments]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert fact in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_the_passage_comes_with_the_package():
    assert len(quality.PASSAGE.read_text(encoding="utf-8").split()) > 600
