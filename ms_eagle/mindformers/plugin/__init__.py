"""The directory to give MindFormers as REGISTER_PATH."""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
