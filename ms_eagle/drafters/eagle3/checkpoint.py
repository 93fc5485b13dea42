"""An EAGLE-3 head from its directory: layout recognised, options checked, every tensor accounted for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.torch_pickle import TorchFile
from ms_eagle.drafters.eagle3 import formats as head_formats
from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.reader import HeadReader
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.quantisation import Asked
from ms_eagle.system import files, json_file

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLE = "pytorch_model.bin"
_VOCABULARY = ("d2t", "t2d")
_FLOATS = ("F32", "F16", "BF16", "F64")
_NAMED = 3  # names written out in a message


@dataclass(frozen=True)
class Head:
    """A head, ready to build a drafter from.

    Attributes:
        config: its shapes and variants.
        tensors: float32 values by our names, exactly those of ``config.tensor_shapes()``.
        d2t: int32 ``[draft_vocab_size]``, the target id of each draft id; None where they are the same.
        hashes: file name to SHA-256, of config.json and the weights.
        dtype: number format of its ``fc.weight`` in the file, such as ``BF16``.
        weights: format that its matrices are computed with, see ``quantisation.stored_as``.
    """

    config: HeadConfig
    tensors: Mapping[str, np.ndarray]
    d2t: np.ndarray | None
    hashes: Mapping[str, str]
    dtype: str = "F32"
    weights: Asked = "stored"

    @property
    def target_ids(self) -> np.ndarray:
        """The target id of each draft id, int32 ``[draft_vocab_size]``, whether they differ or not."""
        return np.arange(self.config.draft_vocab_size, dtype=np.int32) if self.d2t is None else self.d2t


def load_head(
    directory: Path,
    *,
    teacher: DecoderConfig,
    taps: Sequence[int] | None = None,
    rope_theta: float | None = None,
    variants: Mapping[str, bool] | None = None,
) -> Head:
    """Read a head of any layout in docs/head_formats.md, strictly.

    Safetensors are preferred; a ``pytorch_model.bin`` is read without unpickling.

    Args:
        directory: holds config.json and the weights.
        teacher: the model the head drafts for.
        taps: inputs of teacher blocks to use whatever config.json says.
        rope_theta: base of the head's rotation to use whatever config.json says.
        variants: some of ``reader.VARIANTS``, to use whatever config.json says.

    Raises:
        UserError: a file is missing or damaged; the directory holds something other than an EAGLE-3 head, a
            head for another teacher or one with an option that is not implemented; tensors are missing,
            unexpected, mis-shaped or not finite; the vocabulary maps or the taps are inconsistent.
    """
    config = json_file.read_object(directory / "config.json")
    layout = head_formats.recognise(config)
    options = head_formats.flatten(config)
    source, weights = _open(directory)
    names = _canonical(directory, source.names)
    if options.get("tie_word_embeddings") and "embed.weight" in names:
        names.setdefault("lm_head.weight", names["embed.weight"])
    shapes = {ours: source.shape(theirs) for ours, theirs in names.items() if ours not in _VOCABULARY}
    described = HeadReader(
        options,
        layout,
        shapes,
        teacher,
        nested_taps=head_taps.KEY not in config and "transformer_layer_config" not in config,
        numbered_layers=any(map(head_formats.numbers_layers, source.names)),
    ).read(taps, rope_theta, variants)
    _check_tensors(directory, described.tensor_shapes(), shapes, names)
    d2t, t2d = (_integers(source, names.get(key)) for key in _VOCABULARY)
    ids, notes = target_ids(d2t, t2d, described.draft_vocab_size, described.vocab_size)
    return Head(
        config=replace(described, notes=(*described.notes, *notes)),
        tensors={ours: _floats(directory, source, names[ours]) for ours in described.tensor_shapes()},
        d2t=ids,
        hashes={file.name: files.sha256(file) for file in (directory / "config.json", *weights)},
        dtype=source.dtype(names["fc.weight"]),
    )


def target_ids(
    d2t: np.ndarray | None, t2d: np.ndarray | None, draft: int, vocab: int
) -> tuple[np.ndarray | None, list[str]]:
    """Turn a head's offsets into target ids, and check them against its mask.

    Args:
        d2t: integers ``[draft]``, target id minus draft id, in any order; or None.
        t2d: booleans or 0 and 1, ``[vocab]``, marking the target ids that have a draft id; or None.
        draft: size of the draft vocabulary.
        vocab: size of the teacher's vocabulary.

    Returns: int32 ``[draft]`` of target ids, None where draft and target ids are the same; the user's notes.

    Raises:
        UserError: d2t is missing where it is needed; a shape or a value is wrong; two draft ids name one
            target id; the mask marks other ids than d2t names.
    """
    if d2t is None and draft != vocab:
        raise UserError(
            f"the head has no d2t, which maps its {draft} draft ids into the vocabulary of {vocab}."
        )
    offsets = np.zeros(draft, np.int64) if d2t is None else d2t
    if offsets.shape != (draft,) or offsets.dtype == bool:
        raise UserError(
            f"d2t is {offsets.dtype} of shape {list(offsets.shape)}; expected integers of [{draft}]."
        )
    ids = np.arange(draft, dtype=np.int64) + offsets
    outside = np.flatnonzero((ids < 0) | (ids >= vocab))
    if outside.size:
        raise UserError(
            f"d2t maps draft id {outside[0]} to target id {ids[outside[0]]}, outside the vocabulary of "
            f"{vocab}; d2t holds target id minus draft id."
        )
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise UserError(f"d2t maps draft ids {first} and {second} to the same target id {ids[first]}.")
    if t2d is not None:
        _check_mask(t2d, ids, vocab)
    same = bool(np.array_equal(ids, np.arange(draft)))
    notes = []
    if same and draft != vocab:
        notes.append(
            f"d2t maps to the first {draft} target ids: was the draft vocabulary ever chosen from data?"
        )
    return (None if same and draft == vocab else ids.astype(np.int32)), notes


def _check_mask(t2d: np.ndarray, ids: np.ndarray, vocab: int) -> None:
    if t2d.shape != (vocab,):
        raise UserError(f"t2d has shape {list(t2d.shape)}; expected [{vocab}].")
    if not np.isin(t2d, (0, 1)).all():
        raise UserError("t2d holds values other than 0 and 1; expected a mask over the teacher's vocabulary.")
    named = np.zeros(vocab, bool)
    named[ids] = True
    differ = np.flatnonzero(named != t2d.astype(bool))
    if differ.size:
        where = "d2t names but t2d does not mark" if named[differ[0]] else "t2d marks but d2t does not name"
        raise UserError(
            f"d2t and t2d contradict each other over {differ.size} target ids: {differ[0]} is one that "
            f"{where}."
        )


def _open(directory: Path) -> tuple[Checkpoint | TorchFile, list[Path]]:
    if any((directory / name).exists() for name in _SAFETENSORS):
        single = directory / _SAFETENSORS[0]
        return Checkpoint.open(directory), [single] if single.exists() else sorted(
            directory.glob("*.safetensors")
        )
    if (directory / _PICKLE).exists():
        return TorchFile(directory / _PICKLE), [directory / _PICKLE]
    raise UserError(f"{directory} has no weights of a head; expected {_SAFETENSORS[0]} or {_PICKLE}.")


def _canonical(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """Our names, with the names in the file."""
    found: dict[str, str] = {}
    for theirs in names:
        ours = head_formats.canonical_name(theirs)
        if ours is None:
            continue
        if ours in found:
            raise UserError(
                f"{directory}: {found[ours]} and {theirs} are the same tensor of a head; keep one."
            )
        found[ours] = theirs
    return found


def _check_tensors(
    directory: Path,
    expected: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
) -> None:
    def refuse(what: str, tensors: list[str]) -> None:
        if tensors:
            shown = ", ".join(tensors[:_NAMED]) + (", ..." if len(tensors) > _NAMED else "")
            plural = "s" if len(tensors) > 1 else ""
            raise UserError(f"{directory}: {len(tensors)} {what} tensor{plural} in the head: {shown}.")

    refuse("missing", [name for name in expected if name not in shapes])
    refuse("unexpected", [names[name] for name in shapes if name not in expected])
    refuse(
        "mis-shaped",
        [
            f"{names[name]} {list(shapes[name])} (expected {list(shape)})"
            for name, shape in expected.items()
            if shapes[name] != shape
        ],
    )


def _integers(source: Checkpoint | TorchFile, name: str | None) -> np.ndarray | None:
    return None if name is None else source.read_integers(name)


def _floats(directory: Path, source: Checkpoint | TorchFile, name: str) -> np.ndarray:
    if source.dtype(name) not in _FLOATS:
        raise UserError(
            f"{directory}: tensor {name} has dtype {source.dtype(name)}; heads are read in "
            f"{', '.join(_FLOATS)}, quantised ones are not implemented."
        )
    with np.errstate(over="ignore"):  # a float64 too large becomes an infinity, reported below
        values = np.asarray(source.read(name), np.float32)
    bad = values.size - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise UserError(
            f"{directory}: tensor {name} holds {bad} values that are NaN or infinite; fetch it again."
        )
    return values
