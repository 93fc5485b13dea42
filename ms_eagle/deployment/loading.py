"""From a bundle to a ready engine, without the model code."""

import time
from dataclasses import dataclass
from importlib import metadata

import mindspore as ms

from ms_eagle.config.sections import Config
from ms_eagle.deployment.bundle import KERNELS, TOKENIZER, WEIGHTS, Bundle
from ms_eagle.deployment.graphs import DeployedGraphs, Loader, read_graphs
from ms_eagle.deployment.memory import Memory
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.kernels.library import Library, load
from ms_eagle.system.progress import Progress
from ms_eagle.system.settings import start
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Deployment:
    """A bundle in memory, from which engines are made.

    Attributes:
        bundle: on disk.
        config: what it was made from, with the overrides of this run.
        tokenizer: the model's.
        load_seconds: what loading took.
    """

    bundle: Bundle
    config: Config
    tokenizer: Tokenizer
    load_seconds: float
    loader: Loader

    def engine(self, tree: str | None = None, *, drafter: bool = True) -> Engine:
        """An engine over the bundle's graphs; engines share weights and caches.

        Args:
            tree: ``BUDGETxDEPTHxBRANCH``, one of the bundle's; None takes that of ``config``.
            drafter: False decodes with the teacher alone.

        Raises:
            UserError: the bundle has no such tree.
        """
        configured = self.config.tree
        name = tree or f"{configured.budget}x{configured.depth}x{configured.branch}"
        shape = self.bundle.tree(name) if drafter and self.bundle.manifest.trees else None
        return Engine(
            DeployedGraphs(self.loader, shape),
            self.tokenizer,
            directory=self.bundle.path(TOKENIZER),
            load_seconds=self.load_seconds,
        )


def load_deployment(bundle: Bundle, config: Config, progress: Progress) -> Deployment:
    """Load a bundle's weights and tokenizer; its graphs are loaded when they are first needed.

    Args:
        bundle: opened.
        config: its own, with the overrides of this run.
        progress: shows what is loaded.

    Raises:
        UserError: the bundle is for another device or another MindSpore, is damaged, or would run code that
            is not ours.
    """
    begin = time.perf_counter()
    checked = bundle.check_weights()
    check_version(bundle)
    graphs = read_graphs(bundle)
    library = _start(bundle, config, progress)
    with progress.steps("loading weights"):
        memory = Memory(bundle.path(WEIGHTS), bundle.manifest.states, ms.get_context("device_target"))
    if library is not None:
        library.settle_large(memory.arrays())
    tokenizer = load_tokenizer(bundle.path(TOKENIZER))
    with progress.steps("checking weights"):
        checked()
    loader = Loader(bundle, graphs, memory, None if library is None else library.path)
    return Deployment(bundle, config, tokenizer, time.perf_counter() - begin, loader)


def check_version(bundle: Bundle) -> None:
    """Refuse a bundle of another MindSpore: graphs are promised to load in the version that wrote them.

    Raises:
        UserError: naming both versions.
    """
    made, here = bundle.manifest.versions.get("mindspore"), metadata.version("mindspore")
    if made != here:
        raise UserError(
            f"{bundle.directory} was exported with MindSpore {made}, this is {here}: install "
            f"mindspore=={made}, or export again"
        )


def _start(bundle: Bundle, config: Config, progress: Progress) -> Library | None:
    """Start the device, and build and load the native kernels where the bundle has some."""
    ascend = bundle.manifest.target == "ascend"
    if ascend and not ms.hal.is_available("Ascend"):
        raise UserError(
            f"{bundle.directory} is for Ascend, and MindSpore finds no Ascend NPU here: run it on one, look "
            "at it with tools/inspect_bundle.py, or export with --target cpu"
        )
    start("Ascend" if ascend else "CPU", config.execution.threads, config.execution)
    if bundle.manifest.kernels != "native":
        return None
    try:
        with bundle.copied(KERNELS) as sources, progress.steps("preparing kernels"):
            return load(config.execution.threads, sources=sources, notice=progress.note)
    except NativeUnavailable as error:
        raise UserError(
            f"{bundle.directory} needs its native kernels: {error}; install a C++ compiler, or export with "
            "--set execution.kernels=eager"
        ) from error
