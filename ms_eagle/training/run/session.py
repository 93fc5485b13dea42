"""A whole training run, from its configuration to a published head."""

import errno
import math
from collections.abc import Callable

import numpy as np

from ms_eagle.drafters.eagle3.formats import OWN
from ms_eagle.drafters.eagle3.layouts import write_head
from ms_eagle.errors import UserError
from ms_eagle.system import files, home
from ms_eagle.system.progress import Progress
from ms_eagle.training import preparation
from ms_eagle.training.batches import Batches
from ms_eagle.training.config import TrainingConfig
from ms_eagle.training.features.source import FeatureSource
from ms_eagle.training.preparation import Sources, Start
from ms_eagle.training.run import curves
from ms_eagle.training.run import folder as run_folder
from ms_eagle.training.run.checkpoint import RunProgress
from ms_eagle.training.run.folder import RunFolder
from ms_eagle.training.run.loop import Intervals, Loop
from ms_eagle.training.run.metrics import Acceptance, Metrics
from ms_eagle.training.run.model_card import card
from ms_eagle.training.schedule import Schedule
from ms_eagle.training.step import HeadTrainer, StepOptions
from ms_eagle.training.workers import Workers


def train(
    config: TrainingConfig, progress: Progress, say: Callable[[str], None], parallel: bool
) -> int | None:
    """Train a head, or continue to; the best one so far is always whole in ``head/`` of the output directory.

    Args:
        config: of the run.
        progress: shows what takes long.
        say: is told in lines what was found and reached.
        parallel: this is one of several processes that ``msrun`` started.

    Returns: None when the last step is done, else the signal that ended the run; the same call continues it.

    Raises:
        UserError: whatever is wrong with the configuration, the files, the disk or the numbers.
    """
    sources = preparation.open_sources(config, progress)
    workers = Workers.join() if parallel else Workers()
    folder = RunFolder(home.expanded(config.output.directory))
    if workers.leads:
        facts = {"corpus": sources.corpus.sha256, "teacher": sources.teacher_sha256, "workers": workers.ranks}
        folder.open(run_folder.identity(config, **facts))
    else:
        say, progress = (lambda line: None), Progress(quiet=True)
    try:
        features = preparation.open_features(config, sources, progress)
        start = preparation.open_start(config, sources, features)
        return _Run(config, sources, features, start, folder, workers, say).loop(progress).run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{error.filename or folder.directory}: {error.strerror}; the last checkpoint is untouched: "
            "make room and run the same command again to continue."
        ) from error
    finally:
        folder.close()


class _Run:
    """The parts of a run, and what it publishes."""

    def __init__(
        self,
        config: TrainingConfig,
        sources: Sources,
        features: FeatureSource,
        start: Start,
        folder: RunFolder,
        workers: Workers,
        say: Callable[[str], None],
    ) -> None:
        how = config.optimization
        self._config, self._start, self._folder, self._workers, self._say = (
            config,
            start,
            folder,
            workers,
            say,
        )
        self._data = preparation.card_data(sources, start)
        self._layout = {"layout": sources.layout, "teacher": sources.facts, "dtype": config.output.dtype}
        shape = {"rows": how.rows, "length": how.row_length, "seed": how.seed}
        self._batches = Batches(
            sources.corpus,
            features,
            sources.split.train,
            rank=workers.rank,
            ranks=workers.ranks,
            **shape,
        )
        self._held_out = Batches(sources.corpus, features, sources.split.held_out, **shape)
        self._metrics = Metrics(folder.directory, how.ttt_steps, config.evaluation.depth)
        per_epoch = self._batches.steps_per_epoch
        self._steps = math.ceil(how.epochs * per_epoch) if how.steps is None else how.steps
        say(
            f"{len(sources.split.train)} conversations to train on, {len(sources.split.held_out)} held "
            f"out; draft vocabulary {len(start.vocabulary.target_ids)}, {start.coverage:.2%} of the answers' "
            f"tokens ({start.held_out_coverage:.2%} held out)"
        )
        say(
            f"{self._steps} steps, {per_epoch} an epoch, of {how.rows * workers.ranks} rows, "
            f"{self._batches.fill:.0%} full; into {folder.directory}"
        )

    def loop(self, progress: Progress) -> Loop:
        """The loop over these parts."""
        how, evaluation = self._config.optimization, self._config.evaluation
        options = StepOptions(
            ttt_steps=how.ttt_steps,
            depth=evaluation.depth,
            step_decay=how.step_decay,
            betas=(how.beta1, how.beta2),
            weight_decay=how.weight_decay,
            clip=how.clip,
            muon=how.muon,
            queries=how.queries,
            ranks=self._workers.ranks,
        )
        start = self._start
        trainer = HeadTrainer(
            start.config,
            start.embedding,
            start.lm_head_rows,
            start.vocabulary.target_ids,
            start.tensors,
            options,
            length=how.row_length,
        )
        return Loop(
            trainer,
            self._batches,
            self._held_out.all,
            Schedule(how.learning_rate, self._steps, how.warmup, how.final_rate),
            Intervals(evaluation.interval, self._config.output.checkpoint_interval),
            checkpoint=self._folder.checkpoint,
            metrics=self._metrics,
            publish=self._publish,
            evaluated=self._draw,
            say=self._say,
            progress=progress,
            workers=self._workers,
        )

    def _publish(self, tensors: dict[str, np.ndarray], at: RunProgress, score: Acceptance) -> None:
        head = self._folder.head
        ids = self._start.vocabulary.target_ids
        write_head(head, self._start.config, tensors, ids, **self._layout, trained_by=OWN)
        steps, evaluations = self._metrics.steps(), self._metrics.evaluations()
        text = card(self._config, self._start.config, self._data, at, score, steps, evaluations, self._steps)
        files.write_text(head / "README.md", text)

    def _draw(self) -> None:
        title = f"{self._data.teacher}: {self._folder.directory.name}"
        curves.draw(self._folder.curves, self._metrics.steps(), self._metrics.evaluations(), title)
