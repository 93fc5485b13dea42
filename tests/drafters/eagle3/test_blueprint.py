"""What is doubtful about a head is said once where it is loaded, with the key that settles it."""

import json

import pytest
from support import tiny_eagle

from ms_eagle.config.sections import Config
from ms_eagle.drafters.eagle3 import blueprint
from ms_eagle.drafters.eagle3.reader import VARIANTS
from ms_eagle.paths import HEADS


class Progress:
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def opened(tmp_path):
    """Open a tiny head of SpecForge's layout with options in its config.json, and keys of ``drafter``."""
    model = tiny_eagle.model_dir("llama", tmp_path)

    def open_head(options, **keys):
        head = tiny_eagle.head_dir(model, tmp_path, **options)
        section = {"kind": "eagle3", "source": str(head), **keys}
        config = Config.model_validate({"model": {"source": str(model)}, "drafter": section})
        progress = Progress()
        return blueprint.open_head(config, tiny_eagle.decoder(model), progress).head.config, progress.notes

    return open_head


@pytest.mark.parametrize(
    ("option", "key", "value"),
    [({"norm_output": True}, "norm_output", False), ({"norm_output": False}, "raw_logits", True)],
)
def test_a_doubt_is_said_once_and_settled_by_its_key(opened, option, key, value):
    _, notes = opened(option)
    assert len(notes) == 1
    assert f"set drafter.{key}={str(value).lower()}" in notes[0]
    config, notes = opened(option, **{key: value})
    assert (getattr(config, key), notes) == (value, [])


def test_a_head_without_doubts_and_every_switch(opened):
    config, notes = opened({"trained_by": "ms_eagle", "norm_output": True})
    assert (config.norm_output, notes) == (True, [])
    config, _ = opened({}, **dict.fromkeys(VARIANTS, True))
    assert all(getattr(config, name) for name in VARIANTS)


def test_bundled_heads_vouch_for_themselves():
    configs = [json.loads(path.read_text()) for path in HEADS.glob("*/config.json")]
    assert configs
    assert {config["trained_by"] for config in configs} == {"ms_eagle"}
