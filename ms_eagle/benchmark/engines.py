"""The engines of a benchmark over one set of loaded weights, with what only the model code can do."""

from collections.abc import Sequence

import numpy as np

from ms_eagle.benchmark.pair import EnginePair, check_drafter
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.stages import StagedGraphs
from ms_eagle.engine.engine import Engine
from ms_eagle.loading import load_engine
from ms_eagle.models.reading import Logits, Reader
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template


class Pair(EnginePair):
    """Both engines from one loaded model; see ``EnginePair``.

    Attributes:
        performance: the graphs of the speculative engine, or those under reference mode's.
    """

    def __init__(self, engine: Engine, config: Config) -> None:
        """Take an engine with a drafter."""
        staged = isinstance(engine.graphs, StagedGraphs)
        self.performance: Graphs = engine.graphs.performance if staged else engine.graphs
        template = load_template(engine.directory, config.model.chat_template)
        alone = engine.alone()
        speculative = Engine(engine.graphs, engine.tokenizer, directory=engine.directory)
        super().__init__(alone, speculative, template)
        self._reader: Reader | None = None

    @classmethod
    def load(cls, config: Config, progress: Progress) -> "Pair":
        """Load the model and the drafter of ``config``.

        Raises:
            UserError: there is no drafter, or see ``load_engine``.
        """
        check_drafter(config)
        return cls(load_engine(config, progress), config)

    def margin(self, tokens: Sequence[int]) -> float:
        """See ``EnginePair``."""
        if self._reader is None:
            teacher = self.performance.teacher
            self._reader = Reader(teacher, Logits(teacher), self.performance.facts.sizes.chunk)
        *_, last = self._reader.pieces([(0, tokens)])
        first, second = np.sort(last.values[0][-1])[::-1][:2]
        return float(first - second)


__all__ = ["Pair"]
