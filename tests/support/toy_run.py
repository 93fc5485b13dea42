"""A tiny teacher, a corpus with its name on it, and a configuration that trains a head on them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from support import tiny_eagle

from ms_eagle.config.sections import load_config
from ms_eagle.loading import open_model
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.system.progress import Progress
from ms_eagle.training.corpus.provenance import Provenance, identity
from ms_eagle.training.corpus.storage import Row, build, write_corpus

TAPS = [0, 1]


def teacher(parent: Path, name: str = "llama_tied", seed: int = 0) -> Path:
    """A configuration file over a random teacher of 2 blocks."""
    directory = tiny_eagle.model_dir(name, parent, seed)
    path = parent / f"{directory.name}.yaml"
    execution = {"device": "CPU", "threads": 2}
    path.write_text(
        yaml.safe_dump({"model": {"source": str(directory), "max_length": 96}, "execution": execution})
    )
    return path


def provenance(teacher_yaml: Path, seed: int = 0) -> dict:
    """Fields of the `Provenance` of corpora that a teacher made."""
    config = load_config(teacher_yaml)
    model = open_model(config, Progress(quiet=True))
    return {**identity(model, config), "seed": seed, "generation": {}}


def corpus(path: Path, teacher_yaml: Path, lengths: Sequence[int], seed: int = 0) -> Path:
    """Random conversations; their second halves count as the teacher's, whatever it would have said."""
    made = Provenance(**provenance(teacher_yaml, seed))
    rng = np.random.default_rng(seed)
    rows = [
        Row(f"t:{i}", "toy", rng.integers(3, made.vocab_size, n).tolist(), ((n // 2, n),))
        for i, n in enumerate(lengths)
    ]
    write_corpus(path, build(rows, made, {}))
    return path


def config(parent: Path, teacher_yaml: Path, corpus_file: Path, **options: dict) -> Path:
    """A training configuration that fits in seconds; ``options`` go over its sections."""
    sections = {
        "data": {"teacher": str(teacher_yaml), "corpus": str(corpus_file), "draft_vocab_size": 64},
        "head": {"taps": TAPS},
        "optimization": {"ttt_steps": 2, "rows": 2, "row_length": 32, "steps": 4, "queries": 1.0},
        "evaluation": {"interval": 2, "depth": 2},
        "output": {"directory": str(parent / "run"), "checkpoint_interval": 2},
    }
    for name, values in options.items():
        sections[name] = sections[name] | values
    path = parent / "train.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def decoder(teacher_yaml: Path) -> DecoderConfig:
    """What the teacher looks like."""
    return tiny_eagle.decoder(Path(load_config(teacher_yaml).model.source))
