"""A corpus made with another teacher, tokenizer or template is refused, with both hashes."""

from types import SimpleNamespace

import pytest

from ms_eagle.errors import UserError
from ms_eagle.training.corpus.provenance import Provenance, identity
from ms_eagle.training.corpus.storage import Row, build

ROWS = [Row("self:0", "self", [1, 5, 6, 7, 2], ((2, 5),))]


@pytest.fixture
def model(tmp_path):
    """The files that identify a teacher."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "tokenizer.json").write_text("vocabulary")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    files_of = SimpleNamespace(directory=directory, origin="there")
    return SimpleNamespace(files=files_of, decoder=SimpleNamespace(vocab_size=96))


CONFIG = SimpleNamespace(model=SimpleNamespace(chat_template=None, system_prompt="Be brief.", thinking=None))


def test_the_teacher_that_made_it_is_accepted(model):
    made = Provenance(seed=1, generation={}, **identity(model, CONFIG))
    assert (made.teacher, made.system_prompt) == ("there", "Be brief.")
    build(ROWS, made, {}).check_teacher(model, CONFIG)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("model.safetensors", "teacher"),
        ("config.json", "teacher"),
        ("tokenizer.json", "tokenizer"),
        ("chat_template.jinja", "chat template"),
    ],
)
def test_another_teacher_or_template_is_refused_with_both_hashes(model, file, what):
    made = Provenance(seed=1, generation={}, **identity(model, CONFIG))
    changed = model.files.directory / file
    changed.write_text(changed.read_text() + " ")
    now = identity(model, CONFIG)
    with pytest.raises(UserError) as caught:
        build(ROWS, made, {}).check_teacher(model, CONFIG)
    name = f"{what.removeprefix('chat ')}_sha256"
    assert f"made with another {what}" in str(caught.value)
    assert getattr(made, name) in str(caught.value)
    assert now[name] in str(caught.value)
