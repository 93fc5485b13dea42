"""From a configuration to reference mode: what it refuses, its trace, and its graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mindspore as ms

from ms_eagle.checkpoints import pointer
from ms_eagle.checkpoints.sources import ModelFiles
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.errors import UserError
from ms_eagle.reference.mode import ReferenceGraphs
from ms_eagle.reference.recorder import Recorder, describe
from ms_eagle.reference.trace import SCHEMA, TraceWriter
from ms_eagle.system import home
from ms_eagle.system.progress import Progress
from ms_eagle.system.provenance import manifest, weight_hashes
from ms_eagle.text.tokenizer import Tokenizer


class ReferenceMode:
    """Reference mode of one configuration; does nothing where the mode is another."""

    def __init__(self, config: Config) -> None:
        """Check the section ``execution`` and open the trace.

        Raises:
            UserError: a trace is asked for in performance mode, other than eager kernels in reference mode,
                or the trace cannot be written.
        """
        execution = config.execution
        self._config, self._on = config, execution.mode == "reference"
        if execution.trace is not None and not self._on:
            raise UserError(
                f"execution.trace is {execution.trace!r}, but traces are written in reference mode only: set "
                f"execution.mode=reference too (execution.mode is {execution.mode})."
            )
        if self._on and execution.kernels not in ("auto", "eager"):
            raise UserError(
                f"execution.kernels is {execution.kernels}, but reference mode computes with eager kernels: "
                "set execution.kernels=auto, or execution.mode=performance."
            )
        self._trace = None if execution.trace is None else TraceWriter(home.expanded(execution.trace))
        self._described = False

    def describe(
        self, graphs: Graphs, files: ModelFiles, head: Sequence[Mapping[str, str]], progress: Progress
    ) -> None:
        """Write the manifest of a loaded run, if there is a trace.

        Args:
            graphs: of performance mode.
            files: the teacher's.
            head: the drafter's files, each ``file`` and ``sha256``.
            progress: shows the hashing.
        """
        if self._trace is None:
            return
        hashed = weight_hashes(files.directory, progress, pointer.files(files.directory))
        weights = {"model": {"origin": files.origin, "files": hashed}, "head": None}
        if head:
            weights["head"] = {"origin": self._config.drafter.source, "files": list(head)}
        facts, shape = graphs.facts, graphs.facts.sizes.tiers[0]
        self._begin(
            {
                "device": ms.get_context("device_target"),
                "kernels": facts.kernels,
                "drafter": facts.drafter,
                "tree": None if shape is None else asdict(shape),
                "batch": facts.sizes.batch,
                "capacity": facts.sizes.capacity,
                "vocab_size": facts.vocab_size,
                "weights": weights,
            }
        )

    def _begin(self, facts: Mapping[str, Any]) -> None:
        self._described = True
        self._trace.write(
            "manifest", {"schema": SCHEMA, **manifest(self._config.model_dump(mode="json"), facts)}
        )

    def fail(self, error: Exception) -> None:
        """End the trace, if there is one, of a run that could not be loaded."""
        if self._trace is None:
            return
        if not self._described:
            self._begin({})
        self._trace.write("error", {**describe(error), "stage": "load", "rows": [], "caches": {}})

    def put_on(
        self, graphs: Graphs, tokenizer: Tokenizer
    ) -> tuple[Graphs | ReferenceGraphs, Recorder | None]:
        """``graphs`` with checked stages in their place and who follows them, or as they are."""
        if not self._on:
            return graphs, None
        staged = ReferenceGraphs(graphs)
        return staged, Recorder(staged, tokenizer, self._trace)
