"""A cycle's tree as SVG: root left, accepted path along the top, probabilities in the boxes."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from markupsafe import Markup

from ms_eagle.pages.markup import element
from ms_eagle.reference.trace import Record

_LONGEST = 16  # characters of a label
_CHARACTER, _PADDING, _HEIGHT = 7.9, 10, 36  # pixels: monospace of 13 px, inside a box, of a box
_GAP_X, _GAP_Y, _MARGIN = 30, 8, 6
_NAMED = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
# Categories that draw nothing, or that reorder what is around them: named by code point instead.
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass
class _Node:
    label: str
    note: str
    kind: str
    title: str
    children: list["_Node"] = field(default_factory=list)
    depth: int = 0
    line: int = 0


def visible(piece: str, longest: int = _LONGEST) -> str:
    """A token's text on one line, with a sign for every character that would not be seen.

    An empty piece is ``∅``; longer ones end in ``…``.
    """
    if not piece:
        return "∅"
    signs = [_NAMED.get(c) or (f"⟨{ord(c):X}⟩" if unicodedata.category(c) in _UNSEEN else c) for c in piece]
    shown = ""
    for sign in signs:
        if _width(shown + sign) > longest:
            return f"{shown}…"
        shown += sign
    return shown


def draw(
    tree: Record, choices: Sequence[int], choice_pieces: Sequence[str], path: Sequence[int], name: str
) -> Markup:
    """The tree as an ``svg`` element; padding is left out.

    Args:
        tree: ``tokens, parents, depths, scores, valid, pieces`` of a cycle record.
        choices, choice_pieces: the teacher's token after each row; empty where it had not spoken yet.
        path: rows of the accepted path; empty for a cycle that did not come so far.
        name: what a screen reader says.
    """
    root = _build(tree, choices, choice_pieces, path)
    nodes = _place(root)
    widths = [
        max(_box(node) for node in nodes if node.depth == depth)
        for depth in range(1 + max(node.depth for node in nodes))
    ]
    left = list(accumulate((width + _GAP_X for width in widths), initial=float(_MARGIN)))
    width = left[-1] - _GAP_X + _MARGIN
    height = 2 * _MARGIN + (1 + max(node.line for node in nodes)) * (_HEIGHT + _GAP_Y) - _GAP_Y
    edges = [(node, child) for node in nodes for child in node.children]
    edges.sort(key=lambda edge: edge[1].kind != "rejected")  # muted ones below
    return element(
        "svg",
        *(_draw_edge(node, child, left) for node, child in edges),
        *(_draw_node(node, left[node.depth]) for node in nodes),
        class_="tree",
        role="img",
        aria_label=name,
        width=width,
        height=height,
        viewBox=f"0 0 {width:.1f} {height}",
    )


def probability(score: float | None, parent_score: float | None) -> float:
    """Of a node given its parent, from cumulative log-probabilities; null stands for minus infinity."""
    if score is None or parent_score is None:
        return 0.0
    return min(1.0, math.exp(score - parent_score))


def percent(share: float) -> str:
    """A probability in few characters: ``87 %``, ``0.4 %``, ``<0.1 %``."""
    if 0 < share < 0.001:
        return "<0.1 %"
    digits = 1 if 0 < share < 0.0995 else 0
    return f"{100 * share:.{digits}f} %"


def _build(tree: Record, choices: Sequence[int], choice_pieces: Sequence[str], path: Sequence[int]) -> _Node:
    """The nodes, the accepted path first among siblings, and behind it what the teacher said instead."""
    accepted = set(path)
    nodes = {
        row: _node(tree, row, row in accepted)
        for row in range(len(tree["pieces"]))
        if row == 0 or tree["valid"][row]
    }
    for row in nodes.keys() & range(len(choices)):
        nodes[row].title += f"\nthe teacher's choice after it: token {choices[row]} {choice_pieces[row]!r}"
    for row in sorted((row for row in nodes if row), key=lambda row: (row not in accepted, row)):
        nodes.get(tree["parents"][row], nodes[0]).children.append(nodes[row])  # an error's tree may be broken
    if path and path[-1] < len(choices):
        last = path[-1]
        title = f"the teacher's own token {choices[last]} {choice_pieces[last]!r}: the next root"
        nodes[last].children.insert(0, _Node(visible(choice_pieces[last]), "teacher", "bonus", title))
    return nodes[0]


def _node(tree: Record, row: int, accepted: bool) -> _Node:
    piece = tree["pieces"][row]
    title = f"row {row}, depth {tree['depths'][row]}: token {tree['tokens'][row]} {piece!r}"
    if row == 0:
        return _Node(visible(piece), "root", "root", title)
    parent, scores = tree["parents"][row], tree["scores"]
    share = probability(scores[row], scores[parent] if 0 <= parent < len(scores) else 0.0)
    kind, whole = "accepted" if accepted else "rejected", probability(scores[row], 0.0)
    title += f"\nprobability {share:.4g} after its parent, {whole:.4g} with the path to it\n{kind}"
    return _Node(visible(piece), percent(share), kind, title)


def _place(root: _Node) -> list[_Node]:
    """All nodes in drawing order, each with depth and line; a node shares the line of its first child."""
    nodes, stack, line = [], [root], 0
    while stack:
        node = stack.pop()
        nodes.append(node)
        node.line = line
        for child in reversed(node.children):
            child.depth = node.depth + 1
            stack.append(child)
        if not node.children:
            line += 1
    return nodes


def _draw_node(node: _Node, x: float) -> Markup:
    y = _MARGIN + node.line * (_HEIGHT + _GAP_Y)
    return element(
        "g",
        element("title", node.title),
        element("rect", x=x, y=y, width=_box(node), height=_HEIGHT, rx=6),
        element("text", node.label, class_="token", x=x + _PADDING, y=y + 16),
        element("text", node.note, class_="note", x=x + _PADDING, y=y + 29),
        class_=f"node {node.kind}",
    )


def _draw_edge(node: _Node, child: _Node, left: Sequence[float]) -> Markup:
    x1, x2 = left[node.depth] + _box(node), left[child.depth]
    y1, y2 = (_MARGIN + line * (_HEIGHT + _GAP_Y) + _HEIGHT / 2 for line in (node.line, child.line))
    bend = x2 - _GAP_X / 2
    curve = f"M{x1:.1f} {y1}H{bend - 6:.1f}C{bend:.1f} {y1} {bend:.1f} {y2} {x2:.1f} {y2}"
    return element("path", class_=f"edge {child.kind}", d=curve)


def _box(node: _Node) -> float:
    return 2 * _PADDING + max(_width(node.label) * _CHARACTER, len(node.note) * 6.4)


def _width(text: str) -> int:
    """Columns of a monospace font: wide East Asian characters take two, marks above others none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
