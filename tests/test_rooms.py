"""The house keeps its order: rooms import only rooms before them, and what is imported is declared."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# fmt: off
ROOMS = [
    "errors", "paths", "system", "kernels", "pages", "config", "tree", "sampling", "text", "models",
    "backends", "checkpoints", "drafters", "cycle", "engine", "reference", "loading", "chat",
    "serving", "training", "diagnosis", "deployment", "mindformers", "benchmark", "cli",
]
# fmt: on
ROOT_FILES = {"__init__", "errors", "paths", "loading"}
LONGEST = 400  # lines of a file
DISTRIBUTIONS = {  # by the name that is imported, where the two differ
    "google": "protobuf",
    "llama_cpp": "llama-cpp-python",
    "yaml": "pyyaml",
}
# Known debts, which must be exact: a debt that is paid goes from its list, and no list grows.
LATE_ROOMS: dict[str, str] = {}  # a file that is to become part of a room
BACKWARD: set[tuple[str, str]] = set()
LONG = {
    "tests/drafters/eagle3/test_checkpoint.py",
    "tests/mindformers/test_mindformers.py",
    "tests/support/native_cases.py",
    "tests/text/test_tokenizer.py",
}


def python_files(*directories: str) -> list[Path]:
    return [path for directory in directories for path in sorted((ROOT / directory).rglob("*.py"))]


def module(path: Path) -> str:
    """The name below ``ms_eagle`` of a file of the package; ``""`` for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "kernels" else parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: Iterable[str] = ()) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; ``from a import b`` is ``a.b`` where known."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else str(node.module)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """For every module of the package, those of the package that it imports."""
    paths = {module(path): path for path in python_files("ms_eagle", "kernels")}
    known = {f"ms_eagle.{name}" for name in paths}
    found = {}
    for name, path in paths.items():
        own = {each for each in imports(path, known) if each.partition(".")[0] == "ms_eagle"}
        found[name] = {each.removeprefix("ms_eagle").removeprefix(".") for each in own} - {name}
    return found


def room(name: str) -> int:
    first = name.partition(".")[0]
    return ROOMS.index(LATE_ROOMS.get(first, first))


def test_a_room_imports_only_rooms_before_it(graph):
    unknown = {name for name in graph if name and name.partition(".")[0] not in {*ROOMS, *LATE_ROOMS}}
    assert not unknown
    backward = {
        (name, other)
        for name, others in graph.items()
        for other in others
        if other and (not name or room(other) > room(name))
    }
    assert backward == BACKWARD


def test_no_file_imports_itself_through_others(graph):
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_root_holds_four_files():
    assert {path.stem for path in (ROOT / "ms_eagle").glob("*.py")} == ROOT_FILES | set(LATE_ROOMS)


def test_no_file_is_long():
    files = python_files("ms_eagle", "kernels", "tools", "tests")
    lengths = {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}
    assert {name for name, length in lengths.items() if length > LONGEST} == LONG


def test_every_folder_is_packaged():
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages = tomllib.load(file)["tool"]["setuptools"]["packages"]
    folders = {module(path) for path in python_files("ms_eagle", "kernels") if path.name == "__init__.py"}
    assert sorted(packages) == sorted(f"ms_eagle.{name}".removesuffix(".") for name in folders)
    holding = {path.parent for path in python_files("ms_eagle", "kernels")}
    assert all((folder / "__init__.py").is_file() for folder in holding)


def test_tests_import_no_tests_and_leave_the_path_alone():
    tests = python_files("tests")
    names = {path.stem for path in tests if path.stem.startswith("test_")} | {"conftest", "tests"}
    for path in tests:
        assert not names & {part for name in imports(path) for part in name.split(".")}, path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        touched = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert "sys.path" not in touched, path
        assert not any(".syspath_prepend" in each for each in touched), path


def test_every_import_is_declared():
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.match(r"[\w.-]+", line)[0].replace("-", "_").lower() for group in groups for line in group}
    own = {"ms_eagle", *sys.stdlib_module_names}
    used = {
        name.partition(".")[0]: path
        for path in python_files("ms_eagle", "kernels", "tools")
        for name in imports(path)
        if name.partition(".")[0] not in own
    }
    undeclared = {
        name: path
        for name, path in used.items()
        if DISTRIBUTIONS.get(name, name).replace("-", "_").lower() not in declared
    }
    assert not undeclared
