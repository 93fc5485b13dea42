"""All that is known of a corpus in the making: what the file holds, and what has been finished since."""

from collections.abc import Iterable

from ms_eagle.training.corpus.parts import Outcome, Parts
from ms_eagle.training.corpus.provenance import Provenance
from ms_eagle.training.corpus.storage import Corpus, Row, build

_FOLLOW_UP = " +1"


def follow_up_key(key: str) -> str:
    """Key of a conversation that goes on from the one of ``key``."""
    return key + _FOLLOW_UP


def base_key(key: str) -> str:
    """Key of the conversation that ``key`` goes on from, or ``key`` itself."""
    return key.removesuffix(_FOLLOW_UP)


class Ledger:
    """Outcomes by key.

    A conversation that goes on from another one takes its place: its row begins with the other's.

    Attributes:
        rows: finished conversations, by the key of the first work on them.
        dropped: reasons by key.
        turns: sampled user turns by key, of which nothing has become yet or ever.
        fresh: whether anything is known that the corpus file does not hold.
    """

    def __init__(self, corpus: Corpus | None, parts: Parts) -> None:
        """Start with a finished corpus file, if there is one, and the parts beside it."""
        self._parts = parts
        self.rows: dict[str, Row] = {}
        self.dropped: dict[str, str] = {}
        self.turns: dict[str, str] = {}
        self._held = 0 if corpus is None else len(corpus)
        if corpus is not None:
            self._take(Outcome.of_row(row) for row in corpus.rows())
            self.dropped |= corpus.dropped
        known = list(parts.outcomes())
        self.fresh = not all(self.done(outcome.key) for outcome in known)
        self._take(known)

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Keep outcomes, on disk first."""
        outcomes = list(outcomes)
        self._parts.add(outcomes)
        self._take(outcomes)
        self.fresh = True

    def done(self, key: str) -> bool:
        """Whether the work of ``key`` has an outcome: a row, its place taken by a longer one, or dropped."""
        if key in self.dropped:
            return True
        row = self.rows.get(base_key(key))
        return row is not None and (row.key == key or base_key(row.key) == key)

    def corpus(self, provenance: Provenance) -> Corpus:
        """The corpus of everything known: what was there, then imports, prompts and self-made ones.

        Raises:
            UserError: there is no conversation.
        """
        return build(self.in_order(), provenance, self.dropped)

    def in_order(self) -> list[Row]:
        """All conversations in the order of the corpus, whichever was finished first."""
        rows = list(self.rows.values())
        return rows[: self._held] + sorted(rows[self._held :], key=lambda row: _order(row.key))

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.kind == "row":
                self.rows[base_key(outcome.key)] = outcome.row()
            elif outcome.kind == "turn":
                self.turns[outcome.key] = outcome.text
            else:
                self.dropped[outcome.key] = outcome.text


def _order(key: str) -> tuple[object, ...]:
    kind, *rest = base_key(key).split()
    numbers = [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in rest]
    return (("import", "prompt", "self").index(kind), *numbers)
