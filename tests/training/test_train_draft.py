"""Whole runs over a tiny teacher: a head that learns its text by heart, and everything that is refused."""

from pathlib import Path

import pytest
import tiny_eagle
import toy_run

from ms_eagle.generation import GenerationOptions
from ms_eagle.progress import Progress
from ms_eagle.sampling import SamplingParams
from ms_eagle.training.config import load_training_config
from ms_eagle.training.corpus import Row, build, write_corpus
from ms_eagle.training.metrics import read
from ms_eagle.training.provenance import Provenance
from ms_eagle.training.session import train

TOOL = Path(__file__).parent.parent.parent / "tools" / "train_draft.py"
DEPTH, NEW = 3, 30


def run(path: Path, *overrides: str) -> list[str]:
    """Train in this process to the end; what was said."""
    said = []
    config = load_training_config(path, list(overrides))
    assert train(config, Progress(quiet=True), said.append, parallel=False) is None
    return said


def test_a_sentence_is_learnt_by_heart(tmp_path):
    teacher = toy_run.teacher(tmp_path)
    directory = tmp_path / "model-llama_tied-0"
    engine = tiny_eagle.engine(directory, None)
    prompt = engine.tokenizer.encode("The quick brown fox", add_special_tokens=True)
    options = GenerationOptions(NEW, SamplingParams(), ignore_eos=True)
    (told,) = engine.generate([prompt], options)
    ids = [*prompt, *told.token_ids]
    made = Provenance(**toy_run.provenance(teacher))
    write_corpus(tmp_path / "c.npz", build([Row("one", "toy", ids, ((len(prompt), len(ids)),))], made, {}))
    path = toy_run.config(
        tmp_path,
        teacher,
        tmp_path / "c.npz",
        data={"held_out": 0.0},
        optimization={
            "ttt_steps": DEPTH,
            "rows": 1,
            "row_length": 64,
            "steps": 120,
            "learning_rate": 0.01,
            "clip": 5.0,
        },
        evaluation={"interval": 30, "depth": DEPTH},
    )
    run(path)
    evaluations = read(tmp_path / "run" / "evaluations.csv")
    assert max(row["accept_L"] for row in evaluations) == DEPTH
    # The published head says so too, where heads are used: every draft of a chain is accepted.
    tree = [f"tree.budget={DEPTH}", f"tree.depth={DEPTH}", "tree.branch=1"]
    (drafted,) = tiny_eagle.engine(directory, tmp_path / "run" / "head", tree).generate([prompt], options)
    assert drafted.token_ids == told.token_ids
    assert drafted.cycles <= NEW / (DEPTH + 1) + 3


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A teacher, a corpus and the configuration of a short run, with its features on disk."""
    parent = tmp_path_factory.mktemp("toy")
    teacher = toy_run.teacher(parent)
    corpus = toy_run.corpus(parent / "c.npz", teacher, [20, 25, 9, 30, 14, 31, 28, 12, 40])
    return toy_run.config(parent, teacher, corpus, data={"features": str(parent / "features")})
