"""Models of a given shape with random weights: exporting a large model needs no checkpoint."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.sources import ModelFiles
from ms_eagle.config.sections import Config
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.scripted import random_head
from ms_eagle.errors import UserError
from ms_eagle.loading import Model
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.weight import Weight
from ms_eagle.system import json_file
from ms_eagle.system.progress import Progress
from ms_eagle.text.tokenizer import load_tokenizer

_BLOCK = 1 << 20  # numbers drawn for a tensor; larger ones repeat them
_SCALE = 0.02


@dataclass(frozen=True)
class RandomCheckpoint:
    """In place of ``checkpoint.Checkpoint``: every tensor of ``shapes`` drawn anew, alike on every call."""

    shapes: Mapping[str, tuple[int, ...]]

    def weight(self, name: str) -> Weight:
        """A tensor, float32: ones for a norm, small numbers for the rest."""
        shape = self.shapes[name]
        if "norm" in name:
            return Weight.of(np.ones(shape, np.float32))
        size = int(np.prod(shape))
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        block = rng.standard_normal(min(size, _BLOCK), dtype=np.float32) * np.float32(_SCALE)
        return Weight.of(np.resize(block, shape))


def random_model(config: Config, layers: int | None, progress: Progress) -> Model:
    """The model of ``model.source`` by its config.json and tokenizer alone.

    Args:
        config: names the source, a directory.
        layers: so many instead of the model's own.
        progress: for the source.

    Raises:
        UserError: the directory lacks one of them, or describes no model that is known.
    """
    path = Path(config.model.source).expanduser()
    if not path.is_dir():
        raise UserError(
            f"model.source is {config.model.source!r}; for random weights expected a directory with the "
            "model's config.json and tokenizer"
        )
    files: ModelFiles = sources.resolve(config.model.source, cache_dir=None, progress=progress)
    described = json_file.read_object(files.directory / "config.json")
    if layers is not None:
        described = {**described, "num_hidden_layers": layers}
    decoder = DecoderConfig.from_hf(described)
    return Model(files, RandomCheckpoint(decoder.tensor_shapes()), decoder, load_tokenizer(files.directory))


def random_draft_head(config: Config, decoder: DecoderConfig) -> Head | None:
    """A random head of the teacher's sizes where ``drafter.kind`` asks for one."""
    return None if config.drafter.kind == "none" else random_head(decoder, config.drafter.taps)


def described(layers: int | None, decoder: DecoderConfig) -> str:
    """What a manifest says of such weights."""
    fewer = "" if layers is None else f"; {decoder.num_layers} layers instead of the model's own number"
    return f"drawn at random, for trying an export{fewer}"
