"""Making a corpus: what is asked for, what of it is done, and the work that is left."""

import functools
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ms_eagle.config.sections import Config
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.feed import answers
from ms_eagle.engine.requests import Completion, GenerationOptions, Request
from ms_eagle.errors import UserError
from ms_eagle.loading import load_engine, open_model
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress
from ms_eagle.text.prompts import Prompt
from ms_eagle.text.template import load_template
from ms_eagle.training.corpus import filters
from ms_eagle.training.corpus.chat import CorpusChat
from ms_eagle.training.corpus.importing import Import, regenerate
from ms_eagle.training.corpus.ledger import Ledger, base_key, follow_up_key
from ms_eagle.training.corpus.pace import Pace
from ms_eagle.training.corpus.parts import Outcome, Parts
from ms_eagle.training.corpus.provenance import Provenance, check_settings, identity
from ms_eagle.training.corpus.storage import Corpus, Row, read_corpus, write_corpus

MIN_ROOM = 16  # tokens an answer must have room for
REGENERATED = 8  # answers of an import that are written again


@dataclass(frozen=True)
class Settings:
    """How conversations are made; part of a corpus' provenance.

    Attributes:
        max_new_tokens: most tokens of an answer.
        turn_tokens: most tokens of a sampled user turn; one that is longer is dropped.
        temperature, top_p: of the sampling of user turns. Answers are greedy.
        seed: of the sampling.
    """

    max_new_tokens: int = 400
    turn_tokens: int = 160
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0

    def record(self) -> dict[str, int | float]:
        """What a manifest says of them and of the filters."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "turn_tokens": self.turn_tokens,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "ngram": filters.NGRAM,
            "min_distinct": filters.MIN_DISTINCT,
        }


@dataclass(frozen=True)
class Order:
    """What a corpus is to hold; what it holds already is not made again.

    Attributes:
        imports: files of conversations to adopt.
        prompts: name of a source and its prompts.
        self_turns: how many user turns the teacher writes; those of them that are of no use count.
        follow_ups: how many conversations of our own get a second turn by the teacher; likewise.
    """

    imports: tuple[Path, ...] = ()
    prompts: tuple[tuple[str, tuple[Prompt, ...]], ...] = ()
    self_turns: int = 0
    follow_ups: int = 0


@dataclass
class _Talk:
    """A conversation whose answers are being written.

    Attributes:
        turns: the user's, all of them.
        answers: tokens of those written so far.
        row: the conversation up to there; None while there is no answer.
    """

    key: str
    source: str
    turns: tuple[str, ...]
    answers: list[Sequence[int]] = field(default_factory=list)
    row: Row | None = None


def make_corpus(
    out: Path, order: Order, config: Config, settings: Settings, progress: Progress
) -> Corpus | None:
    """Make the corpus file ``out``, or what of it is missing.

    Finished work is kept in parts beside the file; the file itself is written at the end.

    Args:
        out: the file; an existing corpus of the same settings is extended.
        order: what it shall hold.
        config: the teacher, without a drafter; ``execution.batch_size`` answers are written at a time.
        settings: how.
        progress: shows what is under way.

    Returns: the corpus, or None if the file was complete already.

    Raises:
        UserError: something given cannot be used, or belongs to another teacher or other settings.
    """
    model = open_model(config, progress)
    template = load_template(model.files.directory, config.model.chat_template)
    chat = CorpusChat(template, model.tokenizer, config.model.system_prompt, config.model.thinking)
    imports = [Import(path) for path in order.imports]
    provenance = Provenance(
        **identity(model, config, progress), seed=settings.seed, generation=settings.record()
    )
    old = read_corpus(out) if out.exists() else None
    if old is not None:
        check_settings(old.manifest.provenance, provenance, str(out))
    with Parts(out, provenance) as parts:
        ledger = Ledger(old, parts)
        engine = functools.cache(lambda: load_engine(config, progress))
        at_once = config.execution.batch_size
        maker = _Maker(ledger, chat, settings, engine, config.model.max_length, at_once, progress)
        for each in imports:
            maker.adopt(each, model.decoder.vocab_size)
        maker.answer_prompts(order.prompts)
        maker.answer_self(order.self_turns)
        maker.follow_up(order.follow_ups)
        if ledger.fresh or old is None:
            corpus = ledger.corpus(provenance)
            write_corpus(out, corpus)
        else:
            corpus = None
        parts.remove()
    return corpus


class _Maker:
    """The stages of the work; each does what is left of it and nothing else."""

    def __init__(
        self,
        ledger: Ledger,
        chat: CorpusChat,
        settings: Settings,
        engine: Callable[[], Engine],
        capacity: int,
        at_once: int,
        progress: Progress,
    ) -> None:
        self._ledger, self._chat, self._settings = ledger, chat, settings
        self._engine, self._capacity, self._at_once = engine, capacity, at_once
        self._progress = progress
        self._seen = {self._first_turn(row) for row in ledger.rows.values()}

    def adopt(self, imported: Import, vocab_size: int) -> None:
        """Take over conversations that prove to be the teacher's.

        Raises:
            UserError: they do not.
        """
        if any(base_key(key).startswith(f"{imported.key} ") for key in self._ledger.rows):
            return
        turns = imported.turns(self._chat, vocab_size)
        rows = [row for row in imported.rows if row.key in turns]
        with self._progress.steps(f"checking {imported.path.name}"):
            differing, tried = regenerate(self._engine(), rows, REGENERATED)
        if differing or not tried:
            raise UserError(
                f"{imported.path}: {len(differing)} of {tried} answers, written again, came out otherwise "
                f"({', '.join(differing[:3])}); expected none: it is of another teacher, or not greedy"
            )
        self._progress.note(
            f"{imported.path}: {len(rows)} of {len(imported.rows)} conversations adopted; {tried} answers, "
            "written again, are the same token for token"
        )
        lost = [row.key for row in imported.rows if row.key not in turns]
        self._ledger.record(
            [Outcome.of_row(row) for row in rows]
            + [Outcome(kind="dropped", key=key, text="import not reproduced") for key in lost]
        )
        self._seen |= {filters.normalised(words[0]) for words in turns.values()}

    def answer_prompts(self, sources: Iterable[tuple[str, Sequence[Prompt]]]) -> None:
        """Answer every turn of every prompt that is new."""
        talks = []
        for source, prompts in sources:
            for prompt in prompts:
                turns = tuple(turn.strip() for turn in prompt.turns)
                key = f"prompt {hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:12]}"
                if not self._ledger.done(key) and not self._duplicate(key, turns[0]):
                    talks.append(_Talk(key, source, turns))
        self._answer(talks, "prompts")

    def answer_self(self, count: int) -> None:
        """Let the teacher write ``count`` user turns in all, and answer those that are of use."""
        keys = [f"self {index}" for index in range(count)]
        self._sample(
            {key: self._chat.user_prefix((), ()) for key in keys if self._unknown(key)}, "user turns"
        )
        talks = []
        for key in keys:  # in order, so that which of two duplicates stays is always the same
            text = self._ledger.turns.get(key)
            if text is not None and not self._ledger.done(key) and not self._duplicate(key, text):
                talks.append(_Talk(key, "self", (text,)))
            elif text is not None:
                self._seen.add(filters.normalised(text))
        self._answer(talks, "answers")

    def follow_up(self, count: int) -> None:
        """Give ``count`` conversations of our own, in all, a second turn, and answer it."""
        ledger = self._ledger
        bases = [row for row in ledger.in_order() if row.key.startswith(("self ", "prompt "))]
        tried = {base_key(row.key) for row in bases if row.key != base_key(row.key)}
        tried |= {base_key(key) for key in ledger.dropped if key != base_key(key)}
        open_ = [row for row in bases if base_key(row.key) not in tried and self._ended(row)]
        chosen = open_[: max(0, count - len(tried))]
        turns = {row.key: self._chat.user_turns(row) for row in chosen}
        texts = {row.key: [self._chat.answer_text(row.ids[a:b]) for a, b in row.answers] for row in chosen}
        chosen = [row for row in chosen if turns[row.key] is not None]
        prefixes = {
            follow_up_key(row.key): self._chat.user_prefix(turns[row.key], texts[row.key])
            for row in chosen
            if self._unknown(follow_up_key(row.key))
        }
        self._sample(prefixes, "follow-up turns")
        talks = []
        for row in chosen:
            key = follow_up_key(row.key)
            text = ledger.turns.get(key)
            if text is not None and not ledger.done(key):
                source = row.source if row.source.endswith("-follow-up") else f"{row.source}-follow-up"
                written = [row.ids[start:end] for start, end in row.answers]
                talks.append(_Talk(key, source, (*turns[row.key], text), written, row))
        self._answer(talks, "follow-up answers")

    def _sample(self, prefixes: dict[str, list[int]], what: str) -> None:
        """Let the teacher go on from each prefix as the user would."""
        settings = self._settings
        waiting = deque((key, prefix) for key, prefix in prefixes.items())

        def next_request() -> tuple[str, Request] | None:
            while waiting:
                key, prefix = waiting.popleft()
                if len(prefix) + settings.turn_tokens > self._capacity:
                    self._ledger.record([Outcome(kind="dropped", key=key, text="conversation too long")])
                    continue
                sampling = SamplingParams(
                    temperature=settings.temperature, top_p=settings.top_p, seed=self._seed(key)
                )
                options = GenerationOptions(settings.turn_tokens, sampling)
                return key, Request(prefix, options, reuse_prefix=True)
            return None

        with Pace(self._progress, what, len(prefixes), self._at_once) as pace:
            for key, reply in self._answers(next_request):
                text = self._chat.answer_text(reply.token_ids).strip()
                fault = "turn too long" if reply.finish_reason != "stop" else None
                fault = fault or filters.turn_fault(text, self._chat.markers)
                kind = "turn" if fault is None else "dropped"
                self._ledger.record([Outcome(kind=kind, key=key, text=fault or text)])
                pace.finished(len(reply.token_ids))

    def _answer(self, talks: Sequence[_Talk], what: str) -> None:
        """Write the answers of conversations; each is recorded when its last one is there."""
        waiting, running = deque(talks), {talk.key: talk for talk in talks}

        def next_request() -> tuple[str, Request] | None:
            while waiting:
                talk = waiting.popleft()
                texts = [self._chat.answer_text(answer) for answer in talk.answers]
                prompt = self._chat.prompt(talk.turns[: len(texts) + 1], texts)
                if len(prompt) + MIN_ROOM > self._capacity:
                    self._conclude(talk, "conversation too long")
                    continue
                options = GenerationOptions(self._settings.max_new_tokens)
                return talk.key, Request(prompt, options, reuse_prefix=True)
            return None

        with Pace(self._progress, what, len(talks), self._at_once) as pace:
            for key, reply in self._answers(next_request):
                talk = running[key]
                if self._goes_on(talk, reply):
                    waiting.appendleft(talk)
                    pace.finished(len(reply.token_ids), jobs=0)
                else:
                    pace.finished(len(reply.token_ids))

    def _goes_on(self, talk: _Talk, reply: Completion) -> bool:
        """Take an answer; returns whether the user has something to say to it."""
        fault = filters.answer_fault(reply.token_ids, self._chat.answer_text(reply.token_ids))
        written = [*talk.answers, reply.token_ids]
        row = self._chat.row(talk.key, talk.source, talk.turns[: len(written)], written)
        if fault is None and row is None:
            fault = "answer not repeated by the template"
        if fault is not None:
            self._conclude(talk, fault)
            return False
        talk.answers, talk.row = written, row
        if len(written) < len(talk.turns):
            return True
        self._conclude(talk, "")
        return False

    def _conclude(self, talk: _Talk, fault: str) -> None:
        """Record a conversation, up to its last good answer; a follow-up without one is dropped."""
        if talk.row is None or talk.row.key != talk.key:
            self._ledger.record([Outcome(kind="dropped", key=talk.key, text=fault)])
        else:
            self._ledger.record([Outcome.of_row(talk.row)])

    def _answers(
        self, next_request: Callable[[], tuple[str, Request] | None]
    ) -> Iterable[tuple[str, Completion]]:
        """Answers to requests; the engine is loaded if there are any."""
        first = next_request()
        if first is not None:
            pushed = [first]
            yield from answers(self._engine(), lambda: pushed.pop() if pushed else next_request())

    def _unknown(self, key: str) -> bool:
        return not self._ledger.done(key) and key not in self._ledger.turns

    def _duplicate(self, key: str, text: str) -> bool:
        """Whether a first user turn was there before; then the work of ``key`` is dropped."""
        words = filters.normalised(text)
        if words in self._seen:
            self._ledger.dropped[key] = "turn duplicate"
            return True
        self._seen.add(words)
        return False

    def _first_turn(self, row: Row) -> str:
        turns = self._chat.user_turns(row)
        return "" if turns is None else filters.normalised(turns[0])

    def _ended(self, row: Row) -> bool:
        """Whether a conversation has one answer that the teacher ended."""
        last = row.ids[-1]
        return len(row.answers) == 1 and last in self._chat.tokenizer.eos_ids

    def _seed(self, key: str) -> int:
        digest = hashlib.sha256(f"{self._settings.seed} {key}".encode()).digest()
        return int.from_bytes(digest[:8], "little")
