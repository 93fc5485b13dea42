"""docs/config.md is what the schema generates, and names every option."""

from ms_eagle import config_docs, schema
from ms_eagle.config import Config


def test_committed_page_is_the_generated_one():
    assert config_docs.PAGE.read_text() == config_docs.page(), "run: python -m ms_eagle.config_docs"


def test_every_option_has_one_row():
    rows = [line for line in config_docs.page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(schema.options(Config))


def test_rows_are_whole():
    for row in config_docs.page().splitlines():
        if row.startswith("| "):
            assert row.replace("\\|", "").count("|") == 5, row
