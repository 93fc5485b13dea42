"""What README.md and docs/ tell people to type exists: tools, their options, configurations, extras."""

import re
import tomllib

import pytest

from ms_eagle.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHARED = (ROOT / "ms_eagle" / "cli" / "command_line.py").read_text()


def commands(text):
    """(tool, the rest of its command) of every command of a page, a continued line joined."""
    return re.findall(r"(?:python|bin/python|\d) (tools/\w+\.py)([^\n`#]*)", text.replace("\\\n", " "))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_name_tools_options_and_configurations_that_exist(page):
    for tool, rest in commands(page.read_text()):
        source = (ROOT / tool).read_text()
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert f'"{option}"' in source + SHARED, f"{tool} {option}"
        for path in re.findall(r"configs/\S+", rest):
            assert (ROOT / path).is_file(), path


def test_installation_commands_are_those_of_a_clone():
    """The package is on no index: `pip install ms_eagle` would fetch whatever has the name there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [*(ROOT / "ms_eagle").rglob("*.py"), *(ROOT / "tools").glob("*.py"), *PAGES]
    for path in [*sources, *(ROOT / "examples").glob("*.py")]:
        for what in re.findall(r"pip install ([^\n`#;&]*)", path.read_text()):
            assert "ms_eagle" not in what, path
            for extra in re.findall(r"\.\[(\w+)\]", what):
                assert extra in extras, path
