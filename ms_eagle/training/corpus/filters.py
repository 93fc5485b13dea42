"""What is left out of a corpus: turns that no user would write, answers that teach nothing."""

from collections.abc import Collection, Sequence

NGRAM = 8
MIN_DISTINCT = 0.5
MIN_CHARACTERS, MAX_CHARACTERS = 8, 1500


def turn_fault(text: str, markers: Collection[str]) -> str | None:
    """Why a sampled user turn is of no use, in a word or two; None if it is fine.

    Args:
        text: the turn, stripped.
        markers: texts of the chat template that must not occur in it.
    """
    if len(text) < MIN_CHARACTERS:
        return "turn too short"
    if len(text) > MAX_CHARACTERS:
        return "turn too long"
    if any(marker in text for marker in markers):
        return "turn with a template marker"
    if "\ufffd" in text or not all(character.isprintable() or character in "\n\t" for character in text):
        return "turn not printable"
    if sum(character.isalpha() for character in text) < len(text) / 3:
        return "turn without words"
    words = text.split()
    return "turn loops" if len(words) > 2 * NGRAM and loops(words) else None


def answer_fault(ids: Sequence[int], text: str) -> str | None:
    """Why an answer is of no use; None if it is fine."""
    if not text.strip():
        return "answer empty"
    return "answer loops" if loops(ids) else None


def loops(items: Sequence[object]) -> bool:
    """Whether under half of the runs of eight items are distinct."""
    runs = [tuple(items[start : start + NGRAM]) for start in range(len(items) - NGRAM + 1)]
    return len(set(runs)) < MIN_DISTINCT * len(runs)


def normalised(text: str) -> str:
    """The text's letters and digits in lower case, one space for everything between: to find duplicates."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())
