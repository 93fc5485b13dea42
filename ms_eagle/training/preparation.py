"""Everything a run is made of, read and checked against each other before the first step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ms_eagle.backends import choosing as device
from ms_eagle.config.sections import Config, load_config
from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.layouts import TeacherFacts
from ms_eagle.errors import UserError
from ms_eagle.loading import Model, open_model, start_device
from ms_eagle.system import home
from ms_eagle.system.locks import FileLock
from ms_eagle.system.progress import Progress
from ms_eagle.training.config import TrainingConfig
from ms_eagle.training.corpus.split import Split, split
from ms_eagle.training.corpus.storage import Corpus, read_corpus
from ms_eagle.training.draft_vocabulary import DraftVocabulary, answer_counts, choose
from ms_eagle.training.features import cache as feature_cache
from ms_eagle.training.features.layout import Kind
from ms_eagle.training.features.source import FeatureSource, LiveFeatures
from ms_eagle.training.features.teacher import TeacherFeatures, load_features
from ms_eagle.training.initial import random_start, teacher_start
from ms_eagle.training.run.model_card import CardData
from ms_eagle.training.shape import chosen_taps, new_head

_SAMPLE = 16  # conversations that the scale of a tap is estimated from


@dataclass(frozen=True)
class Sources:
    """The teacher and its corpus.

    Attributes:
        config, model: the teacher's configuration and files; its weights are not loaded.
        corpus: made by this teacher.
        split: which conversations are trained on.
        head: what the head looks like; ``layout``: of ``LAYOUTS``, to publish it in.
    """

    config: Config
    model: Model
    corpus: Corpus
    split: Split
    head: HeadConfig
    layout: str

    @property
    def taps(self) -> tuple[int, ...]:
        """Blocks whose inputs feed the head."""
        return self.head.taps

    @property
    def facts(self) -> TeacherFacts:
        """The teacher, for the files of the head."""
        decoder = self.model.decoder
        return TeacherFacts(decoder.num_layers, decoder.architecture, self.config.model.source)

    @property
    def teacher_sha256(self) -> str:
        """Hash of the teacher's weights."""
        return self.corpus.manifest.provenance.teacher_sha256


@dataclass(frozen=True)
class Start:
    """A head before its first step.

    Attributes:
        config: what it looks like.
        vocabulary: its draft vocabulary.
        tensors: float32 weights by the names of ``config.tensor_shapes()``.
        embedding: the teacher's, float32 ``[V, E]``.
        lm_head_rows: the teacher's LM head rows of the draft vocabulary, float32 ``[V_d, E]``.
        coverage, held_out_coverage: share of answer tokens that the draft vocabulary has.
    """

    config: HeadConfig
    vocabulary: DraftVocabulary
    tensors: dict[str, np.ndarray]
    embedding: np.ndarray
    lm_head_rows: np.ndarray
    coverage: float
    held_out_coverage: float


def open_sources(config: TrainingConfig, progress: Progress) -> Sources:
    """Read and check teacher and corpus; start the device.

    Raises:
        UserError: a file is missing, damaged or of another teacher; nothing to train on; taps that the
            teacher does not have; a head that the layout cannot say.
    """
    corpus = read_corpus(home.expanded(config.data.corpus))
    parts = split(corpus.source, corpus.role, corpus.offsets, config.data.held_out)
    teacher = load_config(home.expanded(config.data.teacher))
    device.start(teacher.execution.device, teacher.execution.threads)
    model = open_model(teacher, progress)
    corpus.check_teacher(model, teacher, progress)
    head = new_head(
        model.decoder,
        draft_vocab_size=config.data.draft_vocab_size,
        layers=config.head.layers,
        taps=chosen_taps(config.head.taps, model.decoder.num_layers),
        fc_norm=config.head.fc_norm,
        norm_output=config.head.norm_output,
        layout=config.output.layout,
    )
    return Sources(teacher, model, corpus, parts, *head)


def open_features(config: TrainingConfig, sources: Sources, progress: Progress) -> FeatureSource:
    """The teacher's hidden states over the corpus: from the cache, which is completed first, or live.

    One process computes; others that need the same features wait for it.

    Raises:
        UserError: the disk is full, or what is there belongs to something else; the process that computes
            has hung; see ``feature_cache``.
    """

    def load() -> TeacherFeatures:
        backend = start_device(sources.config, progress, strays=1)
        longest = int(np.diff(sources.corpus.offsets).max())
        return load_features(sources.model, backend, sources.taps, longest, progress)

    if config.data.features is None:
        return LiveFeatures(sources.corpus, load())
    what = (Kind(sources.teacher_sha256, sources.taps), sources.corpus)
    folder = feature_cache.cache_folder(home.expanded(config.data.features), *what)
    lock = FileLock(folder.with_suffix(".lock"))
    lock.acquire(config.data.wait, progress.note)
    try:
        return feature_cache.build(folder, *what, load, progress, lock.beat)
    finally:
        lock.release()


def open_start(config: TrainingConfig, sources: Sources, features: FeatureSource) -> Start:
    """The head's shape, vocabulary and first weights; ``features`` are over the corpus of ``sources``.

    Raises:
        UserError: a draft vocabulary that cannot be; a head to start from that is damaged or another one
            than the configuration describes.
    """
    decoder, checkpoint = sources.model.decoder, sources.model.checkpoint
    embedding = np.array(checkpoint.read("model.embed_tokens.weight"), np.float32)
    lm_head = embedding if decoder.tied else checkpoint.read("lm_head.weight")
    counts, held_counts = (
        _counts(sources, part, decoder.vocab_size) for part in (sources.split.train, sources.split.held_out)
    )
    directory = None
    if config.head.start in ("teacher", "random"):
        tokenizer, rows = sources.model.tokenizer, decoder.vocab_size
        always = {token for token in (*tokenizer.special_ids, *tokenizer.eos_ids) if token < rows}
        vocabulary = choose(counts, config.data.draft_vocab_size, always)
    else:
        directory = home.expanded(config.head.start)
        if not directory.is_dir():
            raise UserError(
                f"head.start is {config.head.start}; expected teacher, random or the directory of a head."
            )
        given = load_head(directory, teacher=decoder, taps=sources.taps)
        vocabulary = DraftVocabulary(given.target_ids, decoder.vocab_size)
    shape = sources.head
    rows = np.array(lm_head[vocabulary.target_ids], np.float32)
    if directory is not None:
        _check_same(directory, given.config, shape)
        tensors = dict(given.tensors)
    elif config.head.start == "random":
        tensors = random_start(shape, config.optimization.seed)
    else:
        seed, level = config.optimization.seed, last_tap_rms(sources, features)
        tensors = teacher_start(shape, seed, checkpoint.read, decoder.num_layers, rows, level)
    coverage, held_coverage = (vocabulary.coverage(each) for each in (counts, held_counts))
    return Start(shape, vocabulary, tensors, embedding, rows, coverage, held_coverage)


def last_tap_rms(sources: Sources, features: FeatureSource) -> float:
    """Median over answered tokens of the root mean square of the last tap, over a few conversations.

    The first token of a sequence, which many teachers give states thousands of times larger, does not count.
    """
    corpus, width = sources.corpus, sources.model.decoder.hidden_size
    levels = []
    numbers = sources.split.train[:_SAMPLE].tolist()
    for number, states in zip(numbers, features.read(numbers), strict=True):
        last = states.taps[:, (len(sources.taps) - 1) * width :].astype(np.float32)
        begin, end = corpus.offsets[number : number + 2]
        levels.append(np.sqrt((last * last).mean(1))[corpus.role[begin:end] == 1])
    return float(np.median(np.concatenate(levels)))


def card_data(sources: Sources, start: Start) -> CardData:
    """What the model card says about the data."""
    manifest = sources.corpus.manifest
    return CardData(
        teacher=sources.model.files.origin,
        teacher_sha256=sources.teacher_sha256,
        layout=sources.layout,
        conversations=manifest.conversations,
        answer_tokens=manifest.answer_tokens,
        corpus_sha256=manifest.sha256,
        coverage=start.coverage,
        held_out_coverage=start.held_out_coverage,
    )


def _counts(sources: Sources, conversations: Sequence[int], vocab_size: int) -> np.ndarray:
    corpus = sources.corpus
    return answer_counts(corpus.ids, corpus.role, corpus.offsets, conversations, vocab_size)


def _check_same(directory: Path, given: HeadConfig, described: HeadConfig) -> None:
    """Refuse a head to start from that differs from what the configuration describes."""
    alike = replace(given, format=described.format, notes=described.notes, doubts=described.doubts)
    for name in vars(described):
        if getattr(alike, name) != getattr(described, name):
            raise UserError(
                f"head.start: the head in {directory} has {name} {getattr(given, name)}, the configuration "
                f"asks for {getattr(described, name)}: let head and data.draft_vocab_size say the same."
            )
