"""A bundle's graphs behind the interface that the host loop drives (``engine.Graphs``)."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.cycle.sizes import Facts, Sizes
from ms_eagle.deployment.bundle import Bundle
from ms_eagle.deployment.manifest import GraphRecord, TreeRecord
from ms_eagle.deployment.memory import Memory, zeros
from ms_eagle.deployment.mindir import MindIR, code_in
from ms_eagle.drafters.registry import NONE
from ms_eagle.errors import UserError
from ms_eagle.kernels.naming import name_library
from ms_eagle.tree.shape import Tier, TreeShape

SEEN = "seen"
"""The state that remembers, for the repetition penalty, which tokens a sequence has: bool ``[B, V]``."""


class Loader:
    """Loads graphs of one bundle, each once, over one `Memory`."""

    def __init__(
        self, bundle: Bundle, graphs: Mapping[str, MindIR], memory: Memory, library: Path | None
    ) -> None:
        """``graphs``: of ``read_graphs``; ``library``: of the native kernels, None where there are none."""
        self.bundle, self.memory, self._library = bundle, memory, library
        self._graphs = graphs
        self._cells: dict[str, nn.GraphCell] = {}
        self._fresh = False

    def cell(self, record: GraphRecord) -> nn.GraphCell:
        """The graph as a Cell; it compiles when it is first called.

        Raises:
            UserError: the graph needs other weights or states than there are.
        """
        if record.file not in self._cells:
            self._cells[record.file] = self._load(record)
            self._fresh = True
        return self._cells[record.file]

    def _load(self, record: GraphRecord) -> nn.GraphCell:
        path, graph = self.bundle.path(record.file), self._graphs[record.file]
        self.memory.check({each.name: (each.dtype, each.shape) for each in graph.parameters()}, path)
        if self._library is not None:
            name_library(graph.model, self._library)
        with tempfile.TemporaryDirectory(prefix="ms_eagle-") as directory:
            copy = Path(directory) / "graph.mindir"
            copy.write_bytes(graph.data())
            cell = nn.GraphCell(ms.load(str(copy)))
        self.memory.share(dict(cell.parameters_and_names()))
        return cell

    def check_shared(self) -> None:
        """See `Memory`; does nothing unless a graph was loaded since the last time."""
        if self._fresh:
            self.memory.check_shared()
            self._fresh = False


def read_graphs(bundle: Bundle) -> dict[str, MindIR]:
    """Every graph of a bundle by its file, checked before anything runs or takes memory.

    Raises:
        UserError: a graph cannot be read, would run code that is not ours, or is another one than the
            manifest describes.
    """
    graphs, parameters = {}, set()
    for record in bundle.manifest.graphs:
        path = bundle.path(record.file)
        graph = MindIR(bundle.read(record.file), str(path))
        refuse_code(graph, native=bundle.manifest.kernels == "native")
        inputs = [(each.dtype, list(each.shape)) for each in graph.inputs()]
        if inputs != [(each.dtype, each.shape) for each in record.inputs]:
            raise UserError(f"{path} takes other inputs than the manifest says; export the bundle again")
        parameters |= {(each.name, each.dtype, each.shape) for each in graph.parameters()}
        graphs[record.file] = graph
    for state in bundle.manifest.states:
        if (state.name, state.dtype, tuple(state.shape)) not in parameters:
            raise UserError(
                f"{bundle.directory}: no graph has the manifest's state {state.name}, {state.dtype} "
                f"{state.shape}; export the bundle again"
            )
    return graphs


def refuse_code(graph: MindIR, *, native: bool) -> None:
    """Refuse a graph that would run anything but MindSpore's operators and our kernels.

    Raises:
        UserError: naming what was found.
    """
    found = code_in(graph)
    if not native and graph.find("Custom"):
        found.append("native kernels, which the target has not")
    if found:
        raise UserError(
            f"{graph.where} holds {found[0]}, which no bundle has; it is damaged or foreign: do not run it"
        )


class DeployedGraphs:
    """Graphs of a bundle; the protocol is ``engine.graphs.Graphs``."""

    def __init__(self, loader: Loader, tree: TreeRecord | None) -> None:
        """``tree``: whose cycles to run; None decodes with the teacher alone."""
        manifest = loader.bundle.manifest
        self._loader, self._tree, self._manifest = loader, tree, manifest
        tier = None if tree is None else TreeShape(tree.budget, tree.depth, tree.branch)
        sizes = Sizes(manifest.batch, manifest.chunk, manifest.capacity, (tier,))
        self.facts = Facts(
            sizes,
            manifest.positions,
            manifest.vocab_size,
            NONE if tree is None else manifest.drafter,
            manifest.kernels,
            manifest.dtype,
            drafts=tree is not None,
        )

    def prefill(self) -> nn.Cell:
        """The Cell that reads a chunk."""
        self._loader.check_shared()
        return self._loader.cell(self._manifest.graph(tree=self._tree, sampled=None))

    def cycle(self, tier: Tier, sampled: bool) -> nn.Cell:
        """The Cell of one cycle: argmax only, or with every sampling option."""
        self._loader.check_shared()
        return self._loader.cell(self._manifest.graph(tree=self._tree, sampled=sampled))

    def empty(self) -> Tensor:
        """Zeros: the drafter has seen nothing yet."""
        return zeros(self._manifest.graph(tree=self._tree, sampled=None).inputs[-1])

    def hints(
        self, tier: Tier, sequences: Sequence[Sequence[int]], scripts: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, ...]:
        """None: a drafter that wants them is in no bundle."""
        return ()

    def tier_for(self, tier: Tier, hints: Sequence[np.ndarray]) -> Tier:
        """The tier itself: no drafter of a bundle ever has nothing to propose."""
        return tier

    def clear(self) -> None:
        """Empty all caches."""
        for state in self._manifest.states:
            if state.name != SEEN:
                self._loader.memory.replace(state.name, zeros(state))

    def see(self, sequences: Sequence[Sequence[int]]) -> None:
        """Let the repetition penalty know which tokens each sequence has."""
        seen = np.zeros((self._manifest.batch, self._manifest.vocab_size), bool)
        for row, sequence in enumerate(sequences):
            seen[row, list(sequence)] = True
        self._loader.memory.replace(SEEN, Tensor(seen))

    def alone(self) -> "DeployedGraphs":
        """Graphs of the teacher alone over the same caches."""
        return DeployedGraphs(self._loader, None)
