"""What ``tools/inspect_bundle.py`` says: the graphs of a bundle as a table, and the rules they keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ms_eagle.checkpoints.safetensors_file import read_header
from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.manifest import GraphRecord, Manifest
from ms_eagle.deployment.mindir import MindIR
from ms_eagle.deployment.rules import Subject, rules_for
from ms_eagle.pages.columns import aligned

_SHOWN = 3  # violations of a rule that are written out


@dataclass(frozen=True)
class GraphFacts:
    """One graph in numbers, and what it breaks, by rule."""

    record: GraphRecord
    nodes: int
    operators: Mapping[str, int]
    parameters: int
    broken: Mapping[str, list[str]]


@dataclass(frozen=True)
class Inspection:
    """A bundle in numbers.

    Attributes:
        manifest: its own word.
        graphs: each in numbers.
        weights: bytes by number format.
        foreign_kernels: see ``Bundle``.
    """

    manifest: Manifest
    graphs: list[GraphFacts]
    weights: dict[str, int]
    foreign_kernels: str | None

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return not any(facts.broken for facts in self.graphs)


def inspect(bundle: Bundle) -> Inspection:
    """Parse and check every graph of a bundle.

    Raises:
        UserError: a graph cannot be read, or the weights do not match their hash.
    """
    checked = bundle.check_weights()
    weights: dict[str, int] = {}
    for entry in read_header(bundle.path(WEIGHTS)).values():
        weights[entry.dtype] = weights.get(entry.dtype, 0) + entry.nbytes
    graphs = [
        examine(
            Subject(bundle.manifest, record, MindIR(bundle.read(record.file), str(bundle.path(record.file))))
        )
        for record in bundle.manifest.graphs
    ]
    checked()
    return Inspection(bundle.manifest, graphs, weights, bundle.foreign_kernels())


def examine(subject: Subject) -> GraphFacts:
    """Check one graph."""
    broken = {
        rule.name: places
        for rule in rules_for(subject.manifest.target)
        if (places := list(rule.broken(subject)))
    }
    operators = subject.graph.operators()
    return GraphFacts(
        subject.record,
        sum(count for name, count in operators.items() if name != "Constant"),
        operators,
        len(subject.graph.parameters()),
        broken,
    )


def lines(inspection: Inspection) -> list[str]:
    """The inspection as text: the bundle, its graphs, its rules."""
    manifest = inspection.manifest
    weights = ", ".join(f"{size / 1e6:.1f} MB {dtype}" for dtype, size in sorted(inspection.weights.items()))
    head = [
        f"target {manifest.target} | kernels {manifest.kernels} | {manifest.dtype} | MindSpore "
        f"{manifest.versions.get('mindspore')} | schema {manifest.schema_version}",
        f"model {manifest.model} | {manifest.layers} layers | vocabulary {manifest.vocab_size} | drafter "
        f"{manifest.head or 'none'} | trees {', '.join(map(str, manifest.trees)) or 'none'}",
        f"batch {manifest.batch} | chunk {manifest.chunk} | capacity {manifest.capacity} | slots "
        f"{manifest.slots.teacher}, {manifest.slots.drafter or 'none'}",
        f"weights {weights}",
    ]
    if manifest.random is not None:
        head.append(f"RANDOM WEIGHTS: {manifest.random}")
    if inspection.foreign_kernels is not None:
        head.append(
            "FOREIGN KERNELS: not this version's own, but code of whoever made the bundle; it runs with "
            f"--trust {inspection.foreign_kernels}"
        )
    table = [["graph", "nodes", "parameters", "attention", "matmul", "custom", "rules"]]
    for facts in inspection.graphs:
        numbers = [facts.nodes, facts.parameters]
        numbers += [facts.operators.get(name, 0) for name in ("FlashAttentionScore", "MatMul", "Custom")]
        table.append([facts.record.file, *map(str, numbers), "broken" if facts.broken else "kept"])
    return [*head, "", *aligned(table), "", *_verdicts(inspection)]


def _verdicts(inspection: Inspection) -> list[str]:
    lines = []
    for rule in rules_for(inspection.manifest.target):
        places = [
            f"{facts.record.file}: {text}"
            for facts in inspection.graphs
            for text in facts.broken.get(rule.name, ())
        ]
        lines.append(f"{'BROKEN' if places else 'ok    '} {rule.name}")
        lines += [f"         {place}" for place in places[:_SHOWN]]
        if len(places) > _SHOWN:
            lines.append(f"         and {len(places) - _SHOWN} more")
    return lines


def record(inspection: Inspection) -> dict[str, Any]:
    """The inspection as JSON values."""
    return {
        "target": inspection.manifest.target,
        "passed": inspection.passed,
        "weights_bytes": inspection.weights,
        "foreign_kernels": inspection.foreign_kernels,
        "graphs": [
            {
                "file": facts.record.file,
                "nodes": facts.nodes,
                "operators": dict(sorted(facts.operators.items())),
                "broken": dict(facts.broken),
            }
            for facts in inspection.graphs
        ],
    }
