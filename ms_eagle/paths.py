"""Where the project's own files are: the one file that knows how deep in the tree it stands."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""A checkout's top level; in an installation the directory of packages, where the next two do not exist."""

CONFIGS, DOCS = ROOT / "configs", ROOT / "docs"
HEADS = PACKAGE / "heads"
"""The heads that the package brings along, a folder each."""
