"""Writing a bundle: compile every graph once, keep the weights once."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import mindspore as ms
import numpy as np
import yaml
from mindspore import Parameter, Tensor, nn
from mindspore.train.mind_ir_pb2 import ModelProto

from ms_eagle import __version__
from ms_eagle.checkpoints import safetensors_file
from ms_eagle.config.sections import Config
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.deployment.assembly import (
    Parts,
    Randomly,
    check,
    load_parts,
    number_type,
    parameter_names,
    state_parameters,
)
from ms_eagle.deployment.bundle import CONFIG, KERNELS, TOKENIZER, WEIGHTS, describe_file
from ms_eagle.deployment.directory import appearing, check_free
from ms_eagle.deployment.graphs import refuse_code
from ms_eagle.deployment.manifest import (
    SCHEMA,
    GraphRecord,
    Manifest,
    Slots,
    TensorRecord,
    TreeRecord,
    write_manifest,
)
from ms_eagle.deployment.mindir import MindIR, strip
from ms_eagle.deployment.random_model import described
from ms_eagle.kernels.build import source_files
from ms_eagle.sampling.options import PARAMS
from ms_eagle.system import files
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template
from ms_eagle.tree.shape import Tier, TreeShape

_STORED = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
)
_TEMPLATES = "additional_chat_templates"


def export_bundle(
    config: Config,
    target: str,
    out: Path,
    progress: Progress,
    *,
    trees: Sequence[TreeShape] = (),
    randomly: Randomly | None = None,
) -> Manifest:
    """Write a bundle.

    Args:
        config: what to load; its tree comes first.
        target: ``cpu`` or ``ascend``.
        out: directory to make; it appears whole or not at all.
        progress: shows each graph.
        trees: further tree shapes to have cycles for.
        randomly: with random weights; the manifest says so.

    Returns:
        the manifest.

    Raises:
        UserError: ``out`` cannot be written or holds something, the disk is full, or the configuration
            cannot be exported.
    """
    check(config, target)
    check_free(out)
    with appearing(out) as directory:  # the second of two that write to one place learns it before it loads
        parts = load_parts(config, target, trees, progress, randomly)
        random = None if randomly is None else described(randomly.layers, parts.model.decoder)
        manifest = _write(parts, config, target, directory, progress, random)
        write_manifest(directory, manifest)
    return manifest


def _write(
    parts: Parts, config: Config, target: str, directory: Path, progress: Progress, random: str | None
) -> Manifest:
    names, states = parameter_names(parts), state_parameters(parts)
    graphs, used = _write_graphs(parts, names, directory, progress)
    written = {names[id(state)] for state in states}
    weights = {name: each for name, each in used.items() if name not in written}
    _write_weights(directory / WEIGHTS, weights, progress)
    _write_tokenizer(parts.model.files.directory, config, directory / TOKENIZER)
    _write_config(config, directory / CONFIG)
    if parts.backend.name == "native":
        (directory / KERNELS).mkdir()
        for source in source_files():
            shutil.copyfile(source, directory / KERNELS / source.name)
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    facts, drafter = parts.graphs.facts, parts.graphs.drafter
    return Manifest(
        schema_version=SCHEMA,
        target=target,
        model=config.model.source,
        drafter=facts.drafter,
        head=(config.drafter.source or "random") if parts.drafting else None,
        random=random,
        versions={"mindspore": metadata.version("mindspore"), "ms_eagle": __version__},
        kernels=parts.backend.name,
        dtype=number_type(parts.backend.formats.weights),
        batch=facts.sizes.batch,
        chunk=facts.sizes.chunk,
        capacity=facts.sizes.capacity,
        positions=facts.positions,
        vocab_size=facts.vocab_size,
        layers=parts.model.decoder.num_layers,
        slots=Slots(
            teacher=parts.graphs.teacher.cache.shape[2],
            drafter=next((cache.shape[2] for cache in drafter.caches()), None),
        ),
        trees=[_tree(tier) for tier in facts.sizes.tiers if tier is not None],
        graphs=graphs,
        states=[_tensor(names[id(state)], state) for state in states],
        files=[describe_file(directory, path.relative_to(directory).as_posix()) for path in found],
    )


def _write_graphs(
    parts: Parts, names: dict[int, str], directory: Path, progress: Progress
) -> tuple[list[GraphRecord], dict[str, Parameter]]:
    """Export every graph; return their records and the Parameters that they use, by name."""
    jobs = _jobs(parts)
    records, used = [], {}
    with progress.steps("exporting", len(jobs)) as step:
        for name, graphs, shape, sampled in jobs:
            step.describe(f"exporting {name}")
            cell = graphs.prefill() if sampled is None else graphs.cycle(shape, sampled)
            inputs = prefill_inputs(graphs) if sampled is None else cycle_inputs(graphs)
            own = {each.name: names[id(each)] for each in cell.get_parameters()}
            graph = export_graph(cell, tuple(inputs.values()))
            used |= {names[id(each)]: each for each in cell.get_parameters()}
            strip(graph, own)
            refuse_code(graph, native=parts.backend.name == "native")
            files.write_bytes(directory / f"{name}.mindir", graph.data())
            records.append(
                GraphRecord(
                    file=f"{name}.mindir",
                    drafter=shape is not None,
                    tree=None if shape is None or sampled is None else _tree(shape),
                    sampled=sampled,
                    inputs=[_tensor(key, value) for key, value in inputs.items()],
                )
            )
            step.advance()
    kept = {each.name for record in records for each in MindIR.read(directory / record.file).parameters()}
    return records, {name: each for name, each in used.items() if name in kept}


def _jobs(parts: Parts) -> list[tuple[str, Graphs, Tier, bool | None]]:
    """Name, graphs, tier and kind (None for a prefill) of everything to export."""
    jobs: list[tuple[str, Graphs, Tier, bool | None]] = [("prefill-teacher", parts.alone, None, None)]
    if parts.drafting is not None:
        jobs.append(("prefill-drafter", parts.drafting, parts.drafting.facts.sizes.tiers[0], None))
    for graphs in (parts.alone, parts.drafting):
        for tier in graphs.facts.sizes.tiers if graphs is not None else ():
            name = "teacher" if tier is None else _tree(tier)
            jobs += [
                (f"cycle-{name}-{'sampled' if sampled else 'greedy'}", graphs, tier, sampled)
                for sampled in (False, True)
            ]
    return jobs


def export_graph(cell: nn.Cell, inputs: Sequence[Tensor]) -> MindIR:
    """Compile a Cell for example inputs; return its graph without the values of its Parameters."""
    kept: list[bytes] = []

    def take(model: ModelProto) -> None:
        kept.append(model.SerializeToString())
        del model.graph.parameter[:]  # MindSpore would write their values, all of them, for every graph

    with tempfile.TemporaryDirectory(prefix="ms_eagle-") as directory:
        name = str(Path(directory) / "graph")
        ms.export(cell, *inputs, file_name=name, file_format="MINDIR", custom_func=take)
    return MindIR(kept[0], type(cell).__name__)


def prefill_inputs(graphs: Graphs) -> dict[str, Tensor]:
    """Example inputs of a prefill by name, see ``prefill.Prefill``."""
    sizes = graphs.facts.sizes
    count = Tensor(np.zeros(sizes.batch, np.int32))
    window = Tensor(np.zeros((sizes.batch, sizes.chunk + 1), np.int32))
    return {"window": window, "start": count, "count": count, "state": graphs.empty()}


def cycle_inputs(graphs: Graphs) -> dict[str, Tensor]:
    """Example inputs of a cycle by name, see ``cycle``."""
    batch = graphs.facts.sizes.batch
    return {
        "root": Tensor(np.zeros(batch, np.int32)),
        "n": Tensor(np.zeros(batch, np.int32)),
        "active": Tensor(np.zeros(batch, bool)),
        "params": Tensor(np.zeros((batch, len(PARAMS)), np.float32)),
        "uniforms": Tensor(np.zeros((batch, graphs.facts.positions), np.float32)),
        "state": graphs.empty(),
    }


def _write_weights(path: Path, weights: dict[str, Parameter], progress: Progress) -> None:
    tensors = {name: (_STORED[number_type(each.dtype)], tuple(each.shape)) for name, each in weights.items()}
    with progress.steps("writing weights", len(weights)) as step:

        def content(name: str) -> Iterator[bytes]:
            step.advance()
            yield weights[name].get_bytes()

        safetensors_file.write(path, tensors, content)


def _write_tokenizer(source: Path, config: Config, target: Path) -> None:
    """Copy the tokenizer, and the chat template that the configuration asks for as the model's own."""
    target.mkdir()
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / _TEMPLATES).is_dir():
        (target / _TEMPLATES).mkdir()
        for path in sorted((source / _TEMPLATES).glob("*.jinja")):
            shutil.copyfile(path, target / _TEMPLATES / path.name)
    if config.model.chat_template is not None:
        template = load_template(source, config.model.chat_template)
        files.write_text(target / "chat_template.jinja", template.source)


def _write_config(config: Config, path: Path) -> None:
    content = config.model_dump(mode="json")
    content["model"]["chat_template"] = None  # it is in the tokenizer's directory
    content["model"]["cache_dir"] = None
    files.write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _tensor(name: str, tensor: Tensor) -> TensorRecord:
    return TensorRecord(name=name, dtype=number_type(tensor.dtype), shape=list(tensor.shape))


def _tree(shape: TreeShape) -> TreeRecord:
    return TreeRecord(budget=shape.budget, depth=shape.depth, branch=shape.branch)
