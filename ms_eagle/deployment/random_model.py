"""Models of a given shape with random weights: exporting a large model needs no checkpoint."""

from pathlib import Path

from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.random_weights import RandomCheckpoint
from ms_eagle.checkpoints.sources import ModelFiles
from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError
from ms_eagle.loading import Model
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.system import json_file
from ms_eagle.system.progress import Progress
from ms_eagle.text.loading import load_tokenizer

_SCALE = 0.02
_MOST = 1 << 20


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
    weights = RandomCheckpoint(decoder.tensor_shapes(), _SCALE, _MOST)
    return Model(files, weights, decoder, load_tokenizer(files.directory), config.model.weights)


def described(layers: int | None, decoder: DecoderConfig) -> str:
    """What a manifest says of such weights."""
    fewer = "" if layers is None else f"; {decoder.num_layers} layers instead of the model's own number"
    return f"drawn at random, for trying an export{fewer}"
