"""Conversations made elsewhere: adopted when they prove to be this teacher's own."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.feed import answers
from ms_eagle.engine.requests import GenerationOptions, Request
from ms_eagle.errors import UserError
from ms_eagle.training.corpus.chat import CorpusChat
from ms_eagle.training.corpus.storage import Row, answer_runs, contents_sha256, read_arrays

_MIN_RENDERED = 0.95  # share of conversations that the template must reproduce


class Import:
    """A corpus file without a manifest, or one whose manifest is not relied on.

    Attributes:
        path: of the file.
        key: names the file by its contents.
        rows: its conversations; keys begin with ``key``.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UserError: see ``corpus.read_arrays``.
        """
        arrays = read_arrays(path)
        names = [str(name) for name in arrays["source_names"]]
        ids, role, offsets, source = (arrays[name] for name in ("ids", "role", "offsets", "source"))
        self.path = path
        self.key = f"import {contents_sha256(ids, role, offsets, source, names)[:12]}"
        bounds = enumerate(itertools.pairwise(offsets.tolist()))
        self.rows = [
            Row(f"{self.key} {n}", names[source[n]], ids[start:end].tolist(), answer_runs(role[start:end]))
            for n, (start, end) in bounds
        ]

    def turns(self, chat: CorpusChat, vocab_size: int) -> dict[str, tuple[str, ...]]:
        """The user's words, by key, of the conversations that the template makes token for token of them.

        Raises:
            UserError: they are fewer than 95%: the file is of another template, tokenizer or system prompt.
        """
        by_key = {}
        for row in self.rows:
            turns = chat.user_turns(row) if row.answers and max(row.ids) < vocab_size else None
            if turns is not None:
                by_key[row.key] = turns
        if len(by_key) < _MIN_RENDERED * len(self.rows):
            raise UserError(
                f"{self.path}: the chat template reproduces {len(by_key)} of its {len(self.rows)} "
                "conversations; expected nearly all: it was made with another template, tokenizer or "
                "system prompt"
            )
        return by_key


def regenerate(engine: Engine, rows: Sequence[Row], count: int) -> tuple[list[str], int]:
    """Write some answers of conversations again, greedily.

    Args:
        engine: of the teacher.
        rows: conversations to choose from, evenly.
        count: how many at most.

    Returns: the keys of those that came out otherwise, and how many were tried.
    """
    fitting = [row for row in rows if len(row.ids) <= engine.graphs.facts.sizes.capacity]
    places = np.unique(np.linspace(0, len(fitting) - 1, min(count, len(fitting))).astype(int))
    chosen = {fitting[place].key: fitting[place] for place in places}
    waiting = iter(chosen.values())

    def next_request() -> tuple[str, Request] | None:
        row = next(waiting, None)
        if row is None:
            return None
        start, end = row.answers[-1]
        return row.key, Request(row.ids[:start], GenerationOptions(max_new_tokens=end - start))

    differing = []
    for key, answer in answers(engine, next_request):
        start, end = chosen[key].answers[-1]
        if list(answer.token_ids) != list(chosen[key].ids[start:end]):
            differing.append(key)
    return differing, len(chosen)
