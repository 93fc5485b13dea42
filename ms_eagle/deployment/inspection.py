"""What ``tools/inspect_bundle.py`` says: the graphs of a bundle as a table, and the rules they keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ms_eagle.checkpoints.safetensors_file import read_header
from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.manifest import GraphRecord, Manifest
from ms_eagle.deployment.mindir import MindIR
from ms_eagle.deployment.rules import Subject, rules_for

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
        graphs: each as it is found.
        weights: bytes by number format.
    """

    manifest: Manifest
    graphs: list[GraphFacts]
    weights: dict[str, int]

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
    return Inspection(bundle.manifest, graphs, weights)


def examine(subject: Subject) -> GraphFacts:
    """Check one graph."""
    broken = {
        rule.name: found
        for rule in rules_for(subject.manifest.target)
        if (found := list(rule.broken(subject)))
    }
    operators = subject.graph.operators()
    return GraphFacts(
        subject.record,
        sum(count for name, count in operators.items() if name != "Constant"),
        operators,
        len(subject.graph.parameters()),
        broken,
    )


def lines(found: Inspection) -> list[str]:
    """The inspection as text: the bundle, its graphs, its rules."""
    manifest = found.manifest
    weights = ", ".join(f"{size / 1e6:.1f} MB {dtype}" for dtype, size in sorted(found.weights.items()))
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
    table = [["graph", "nodes", "parameters", "attention", "matmul", "custom", "rules"]]
    for facts in found.graphs:
        count = facts.operators.get
        table.append(
            [
                facts.record.file,
                str(facts.nodes),
                str(facts.parameters),
                str(count("FlashAttentionScore", 0)),
                str(count("MatMul", 0)),
                str(count("Custom", 0)),
                "broken" if facts.broken else "kept",
            ]
        )
    return [*head, "", *_aligned(table), "", *_verdicts(found)]


def _verdicts(found: Inspection) -> list[str]:
    told = []
    for rule in rules_for(found.manifest.target):
        places = [
            f"{facts.record.file}: {text}"
            for facts in found.graphs
            for text in facts.broken.get(rule.name, ())
        ]
        told.append(f"{'BROKEN' if places else 'ok    '} {rule.name}")
        told += [f"         {place}" for place in places[:_SHOWN]]
        if len(places) > _SHOWN:
            told.append(f"         and {len(places) - _SHOWN} more")
    return told


def _aligned(table: list[list[str]]) -> list[str]:
    """Columns padded to their widest entry; numbers to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def record(found: Inspection) -> dict[str, Any]:
    """The inspection as JSON values."""
    return {
        "target": found.manifest.target,
        "passed": found.passed,
        "weights_bytes": found.weights,
        "graphs": [
            {
                "file": facts.record.file,
                "nodes": facts.nodes,
                "operators": dict(sorted(facts.operators.items())),
                "broken": dict(facts.broken),
            }
            for facts in found.graphs
        ],
    }
