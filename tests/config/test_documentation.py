"""The pages on configurations are what their schemas generate, and name every option."""

import pytest

from ms_eagle.cli import config_docs
from ms_eagle.config import schema
from ms_eagle.config.sections import Config
from ms_eagle.training.config import TrainingConfig

PAGES = [
    (config_docs.PAGE, config_docs.page, Config),
    (config_docs.TRAINING_PAGE, config_docs.training_page, TrainingConfig),
]


@pytest.mark.parametrize(("path", "page", "kind"), PAGES)
def test_committed_page_is_the_generated_one(path, page, kind):
    assert path.read_text() == page(), "run: python -m ms_eagle.cli.config_docs"


@pytest.mark.parametrize(("path", "page", "kind"), PAGES)
def test_every_option_has_one_row(path, page, kind):
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(schema.options(kind))


@pytest.mark.parametrize(("path", "page", "kind"), PAGES)
def test_rows_are_whole(path, page, kind):
    for row in page().splitlines():
        if row.startswith("| "):
            assert row.replace("\\|", "").count("|") == 5, row
