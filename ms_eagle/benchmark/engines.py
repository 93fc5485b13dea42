"""The engines of a benchmark over one set of loaded weights, with what only the model code can do."""

from collections.abc import Sequence

from ms_eagle.benchmark.margin import MarginGraphs
from ms_eagle.benchmark.pair import Answer, EnginePair, check_drafter
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import TeacherGraphs
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.loading import load_engine
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template


class Pair(EnginePair):
    """Both engines from one loaded model; see ``EnginePair``.

    Attributes:
        performance: the graphs of the speculative engine, or those under reference mode's.
        synthetic: the drafter is scripted: it needs the teacher's answer before it can draft.
    """

    def __init__(self, engine: Engine, config: Config) -> None:
        """Take an engine with a drafter; any subclass of ``Engine`` is replaced by a plain one."""
        staged = isinstance(engine.graphs, ReferenceGraphs)
        performance = engine.graphs.performance if staged else engine.graphs
        alone = TeacherGraphs(
            performance.teacher,
            chunk=performance.chunk,
            capacity=performance.capacity,
            kernels=performance.kernels,
        )
        self._parts = {
            "tokenizer": engine.tokenizer,
            "directory": engine.directory,
            "dtype": config.model.dtype,
            "load_seconds": engine.load_seconds,
        }
        self.performance = performance
        super().__init__(
            Engine(ReferenceGraphs(alone) if staged else alone, **self._parts),
            Engine(engine.graphs, **self._parts),
            load_template(engine.directory, config.model.chat_template),
        )
        self.synthetic = performance.drafter == "synthetic"
        self._margin: MarginGraphs | None = None

    @classmethod
    def load(cls, config: Config, progress: Progress) -> "Pair":
        """Load the model and the drafter of ``config``.

        Raises:
            UserError: there is no drafter, or see ``load_engine``.
        """
        check_drafter(config)
        return cls(load_engine(config, progress), config)

    def script(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        known: Sequence[Answer] | None = None,
    ) -> None:
        """See ``EnginePair``."""
        if self.synthetic:
            known = known or self.alone(prompts, options)
            scripts = [[*p, *a.completion.token_ids] for p, a in zip(prompts, known, strict=True)]
            self.performance.proposer.follow(scripts)

    def margin(self, tokens: Sequence[int]) -> float:
        """See ``EnginePair``."""
        if self._margin is None:
            graphs = self.performance
            self._margin = MarginGraphs(
                graphs.teacher, chunk=graphs.chunk, capacity=graphs.capacity, kernels=graphs.kernels
            )
        Engine(self._margin, **self._parts).generate([tokens], GenerationOptions(1, ignore_eos=True))
        return self._margin.last()


__all__ = ["Answer", "Pair"]
