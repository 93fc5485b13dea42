"""Corpora made with a tiny teacher: what is in them, and that a broken run goes on where it was."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import user_like

from ms_eagle.config.sections import load_config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.loading import load_engine, open_model
from ms_eagle.system.progress import Progress
from ms_eagle.text.prompts import read_prompts
from ms_eagle.training.corpus import maker as corpus_maker
from ms_eagle.training.corpus import pace as corpus_pace
from ms_eagle.training.corpus.filters import normalised
from ms_eagle.training.corpus.maker import Order, Settings, make_corpus
from ms_eagle.training.corpus.parts import Parts
from ms_eagle.training.corpus.storage import read_corpus

QUIET = Progress(quiet=True)
SETTINGS = Settings(max_new_tokens=24, turn_tokens=30)
PROMPTS = [["hello there"], ["say it", "and again"], ["Hello, there?"], ["what now"]]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("maker")
    user_like.config(root / "c.yaml", user_like.save(root / "model"))
    (root / "p.jsonl").write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in PROMPTS))
    return root


@pytest.fixture(scope="module")
def config(root):
    return load_config(root / "c.yaml", [])


@pytest.fixture(scope="module")
def engine(config):
    return load_engine(config)


@pytest.fixture(autouse=True)
def one_engine(engine, monkeypatch):
    """Graphs are compiled once for all tests."""
    monkeypatch.setattr(corpus_maker, "load_engine", lambda *_: engine)


@pytest.fixture(scope="module")
def order(root):
    return Order(prompts=(("p", tuple(read_prompts(root / "p.jsonl"))),), self_turns=24, follow_ups=6)


@pytest.fixture(scope="module")
def made(root, order, config, engine):
    """The corpus of one unbroken run."""
    out = root / "unbroken" / "c.npz"
    out.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_maker, "load_engine", lambda *_: engine)
        assert make_corpus(out, order, config, SETTINGS, QUIET) is not None
    assert list(out.parent.iterdir()) == [out]
    return out


@pytest.fixture
def chat(config):
    model = open_model(config, QUIET)
    template = corpus_maker.load_template(model.files.directory)
    return corpus_maker.CorpusChat(template, model.tokenizer)


def same(a: Path, b: Path) -> bool:
    """Whether two corpora hold the same, keys and reasons included."""
    a, b = read_corpus(a), read_corpus(b)
    return (a.rows(), a.manifest, a.dropped) == (b.rows(), b.manifest, b.dropped)


def test_every_answer_is_the_teachers_greedy_one(made, chat, engine):
    corpus = read_corpus(made)
    sources = set(corpus.source_names)
    assert {"p", "self"} <= sources <= {"p", "self", "p-follow-up", "self-follow-up"}
    assert sources & {"p-follow-up", "self-follow-up"}
    for row in corpus.rows():
        turns = chat.user_turns(row)
        assert turns is not None
        assert len(turns) == len(row.answers)
        asked = [row.ids[:start] for start, _ in row.answers]
        for completion, (start, end) in zip(
            engine.generate(asked, GenerationOptions(24)), row.answers, strict=True
        ):
            assert list(completion.token_ids) == row.ids[start:end]
    lengths = {end - start for row in corpus.rows() for start, end in row.answers}
    assert len(lengths) > 3  # answers of one length would hide a mix-up of rows
    assert corpus.role.sum() == sum(corpus.manifest.answer_tokens.values())


def test_user_turns_are_fit_and_different(made, chat):
    corpus = read_corpus(made)
    first = [chat.user_turns(row)[0] for row in corpus.rows()]
    assert len({normalised(text) for text in first}) == len(first)
    assert "hello there" in first
    assert "Hello, there?" not in first
    reasons = corpus.manifest.dropped
    assert reasons["turn duplicate"] >= 1
    assert reasons["turn too short"] >= 1
    made_of = {row.key.removesuffix(" +1") for row in corpus.rows()} | set(corpus.dropped)
    assert {f"self {index}" for index in range(24)} <= made_of
    tried = [key for key in (*corpus.keys, *corpus.dropped) if key.endswith(" +1")]
    assert len(tried) == 6


class Broken(Exception):
    """Stands in for a kill."""


@pytest.mark.parametrize("after", [0, 3, 26, 40])
def test_a_broken_run_goes_on_and_ends_alike(made, order, config, tmp_path, monkeypatch, after):
    out, finished = tmp_path / "c.npz", []
    add = Parts.add

    def failing(parts, outcomes):
        if len(finished) == after:
            raise Broken
        add(parts, outcomes)
        finished.extend(outcome.key for outcome in outcomes)

    monkeypatch.setattr(Parts, "add", failing)
    with pytest.raises(Broken):
        make_corpus(out, order, config, SETTINGS, QUIET)
    assert not out.exists()
    again = []
    monkeypatch.setattr(Parts, "add", lambda parts, outcomes: (add(parts, outcomes), again.extend(outcomes)))
    make_corpus(out, order, config, SETTINGS, QUIET)
    assert same(out, made)
    kinds = {(outcome.kind == "turn", outcome.key) for outcome in again}
    assert len(kinds) == len(again)  # nothing twice
    total = read_corpus(made)
    assert len(again) + after >= len(total)
    assert len(again) < len(total) + len(total.dropped) + 40 - after


def test_a_complete_corpus_asks_for_nothing(made, order, config, monkeypatch):
    before = made.read_bytes()
    monkeypatch.setattr(corpus_maker, "load_engine", None)  # nothing may be loaded
    assert make_corpus(made, order, config, SETTINGS, QUIET) is None
    assert make_corpus(made, Order(self_turns=3), config, SETTINGS, QUIET) is None
    assert made.read_bytes() == before
    assert list(made.parent.iterdir()) == [made]


def test_a_kill_between_the_file_and_the_removal_of_its_parts(made, order, config, tmp_path, monkeypatch):
    out = tmp_path / "c.npz"
    monkeypatch.setattr(Parts, "remove", lambda _: None)
    make_corpus(out, order, config, SETTINGS, QUIET)
    monkeypatch.undo()
    monkeypatch.setattr(corpus_maker, "load_engine", None)
    assert make_corpus(out, order, config, SETTINGS, QUIET) is None
    assert list(tmp_path.iterdir()) == [out]
    assert same(out, made)


def test_more_is_added_behind_what_is_there(made, order, config, tmp_path):
    out = tmp_path / "c.npz"
    make_corpus(out, Order(self_turns=8, follow_ups=1), config, SETTINGS, QUIET)
    first = read_corpus(out).rows()
    make_corpus(out, Order(order.imports, order.prompts, 24, 1), config, SETTINGS, QUIET)
    both = read_corpus(out)
    assert both.rows()[: len(first)] == first
    whole = read_corpus(made)
    plain = {row.key: row.ids for row in both.rows()}
    shared = [row for row in whole.rows() if row.key in plain]
    assert len(shared) > len(first)
    assert all(plain[row.key] == row.ids for row in shared)


def test_other_settings_are_refused(made, order, config, root):
    with pytest.raises(UserError, match=f"{made} was made with max_new_tokens 24, asked for is 25"):
        make_corpus(made, order, config, Settings(25, 30), QUIET)
    other = load_config(user_like.config(root / "other.yaml", user_like.save(root / "other", seed=2)), [])
    with pytest.raises(UserError, match=f"{made} was made with another teacher: its sha256 is "):
        make_corpus(made, order, other, SETTINGS, QUIET)
    with pytest.raises(UserError, match="the corpus was made with another teacher"):
        read_corpus(made).check_teacher(open_model(other, QUIET), other)
    read_corpus(made).check_teacher(open_model(config, QUIET), config)


def test_nothing_of_use(config, tmp_path):
    with pytest.raises(UserError, match=r"no conversation is left for the corpus \(3 were dropped\)"):
        make_corpus(tmp_path / "c.npz", Order(self_turns=3), config, Settings(24, 1), QUIET)
    with pytest.raises(UserError, match=r"no conversation is left for the corpus \(0 were dropped\)"):
        make_corpus(tmp_path / "d.npz", Order(), config, SETTINGS, QUIET)


# Conversations made elsewhere.


def without_manifest(made: Path, path: Path, change=lambda arrays: None) -> Path:
    with np.load(made) as archive:
        arrays = {n: archive[n] for n in ("ids", "role", "offsets", "source", "source_names")}
    change(arrays)
    np.savez(path, **arrays)
    return path


def test_an_import_is_adopted_once_and_extended(made, config, tmp_path):
    given = without_manifest(made, tmp_path / "given.npz")
    out = tmp_path / "c.npz"
    make_corpus(out, Order(imports=(given,)), config, SETTINGS, QUIET)
    found, old = read_corpus(out), read_corpus(made)
    assert found.ids.tolist() == old.ids.tolist()
    assert found.sha256 == old.sha256
    assert make_corpus(out, Order(imports=(given,)), config, SETTINGS, QUIET) is None
    longer = make_corpus(out, Order(imports=(given,), self_turns=30), config, SETTINGS, QUIET)
    # Turns of the import are known: only those past its 24 are new.
    new = {row.key for row in longer.rows() if row.key.startswith("self")}
    assert new <= {f"self {index}" for index in range(24, 30)}
    assert new


def test_an_import_of_another_teacher_is_refused(made, config, tmp_path, monkeypatch):
    def one_token(arrays):
        for place in np.flatnonzero(arrays["role"] & (arrays["ids"] != user_like.END)):
            arrays["ids"][place] = 3 + (arrays["ids"][place] - 2) % len(user_like.LETTERS)

    given = without_manifest(made, tmp_path / "given.npz", one_token)
    with pytest.raises(UserError, match=r"came out otherwise .*another teacher, or not greedy"):
        make_corpus(tmp_path / "c.npz", Order(imports=(given,)), config, SETTINGS, QUIET)
    assert not (tmp_path / "c.npz").exists()


def test_an_import_of_another_template_is_refused(made, config, tmp_path):
    other = config.model_copy(update={"model": config.model.model_copy(update={"system_prompt": "no"})})
    given = without_manifest(made, tmp_path / "given.npz")
    with pytest.raises(UserError, match=r"reproduces 0 of its .* another template, tokenizer or"):
        make_corpus(tmp_path / "c.npz", Order(imports=(given,)), other, SETTINGS, QUIET)


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(corpus_pace.time, "perf_counter", lambda: clock[0])
    with corpus_pace.Pace(Progress(), "answers", 4) as pace:
        for _ in range(3):
            clock[0] += 50.0
            pace.finished(100)
    with corpus_pace.Pace(Progress(), "nothing", 0):
        pass
    assert capsys.readouterr().err.splitlines() == [
        "note: answers: 2 of 4, 2 tokens/s, about 2 min left",
        "note: answers: 3 of 4, 2 tokens/s, about 50 s left",
    ]
    # Jobs that are under way count for half: the first of 32 to end has not taken a minute of the machine.
    with corpus_pace.Pace(Progress(), "answers", 286, at_once=32) as pace:
        clock[0] += 60.0
        pace.finished(100)
    assert capsys.readouterr().err.splitlines()[0] == "note: answers: 1 of 286, about 16 min left"
