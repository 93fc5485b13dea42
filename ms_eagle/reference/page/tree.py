"""A cycle's tree as SVG: root left, accepted path along the top, probabilities in the boxes."""

import html
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

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


def escape(text: str) -> str:
    """Text for HTML content and attributes; what HTML or UTF-8 cannot hold becomes U+FFFD."""
    allowed = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "�" for c in text)
    return html.escape("".join(allowed))


def draw(
    tree: Record, choices: Sequence[int], choice_pieces: Sequence[str], path: Sequence[int], name: str
) -> str:
    """The tree as an ``svg`` element; padding is left out.

    Args:
        tree: ``tokens, parents, depths, scores, valid, pieces`` of a cycle record.
        choices, choice_pieces: the teacher's token after each row; empty where it had not spoken yet.
        path: rows of the accepted path; empty for a cycle that did not come so far.
        name: what a screen reader says.
    """
    root = _build(tree, choices, choice_pieces, path)
    nodes = _place(root)
    widths: dict[int, float] = {}
    for node in nodes:
        widths[node.depth] = max(widths.get(node.depth, 0.0), _box(node))
    left = {0: float(_MARGIN)}
    for depth in range(1, len(widths)):
        left[depth] = left[depth - 1] + widths[depth - 1] + _GAP_X
    width = left[len(widths) - 1] + widths[len(widths) - 1] + _MARGIN
    height = 2 * _MARGIN + (1 + max(node.line for node in nodes)) * (_HEIGHT + _GAP_Y) - _GAP_Y
    edges, boxes = [], []
    for node in nodes:
        boxes.append(_draw_node(node, left[node.depth]))
        for child in node.children:
            edges.append((child.kind != "rejected", _draw_edge(node, child, left)))
    lines = "".join(edge for _, edge in sorted(edges, key=lambda edge: edge[0]))  # muted ones below
    return (
        f'<svg class="tree" role="img" aria-label="{escape(name)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{lines}{"".join(boxes)}</svg>'
    )


def probability(score: float | None, parent_score: float | None) -> float:
    """Of a node given its parent, from cumulative log-probabilities; null stands for minus infinity."""
    if score is None or parent_score is None:
        return 0.0
    return min(1.0, math.exp(score - parent_score))


def percent(share: float) -> str:
    """A probability in few characters: ``87 %``, ``0.4 %``, ``<0.1 %``."""
    if share <= 0:
        return "0 %"
    if share < 0.001:
        return "<0.1 %"
    return f"{share:.0%}".replace("%", " %") if share >= 0.0995 else f"{share:.1%}".replace("%", " %")


def _build(tree: Record, choices: Sequence[int], choice_pieces: Sequence[str], path: Sequence[int]) -> _Node:
    """The nodes, the accepted path first among siblings, and behind it what the teacher said instead."""
    accepted, made = set(path), {}
    for row, piece in enumerate(tree["pieces"]):
        if row and not tree["valid"][row]:
            continue
        label = visible(piece)
        title = [f"row {row}, depth {tree['depths'][row]}: token {tree['tokens'][row]} {piece!r}"]
        if row == 0:
            kind, note = "root", "root"
        else:
            parent = tree["parents"][row]
            known = 0 <= parent < len(tree["scores"])
            share = probability(tree["scores"][row], tree["scores"][parent] if known else 0.0)
            kind, note = ("accepted" if row in accepted else "rejected"), percent(share)
            whole = probability(tree["scores"][row], 0.0)
            title.append(f"probability {share:.4g} after its parent, {whole:.4g} with the path to it")
            title.append(kind)
        if row < len(choices):
            title.append(f"the teacher's choice after it: token {choices[row]} {choice_pieces[row]!r}")
        made[row] = _Node(label, note, kind, "\n".join(title))
    for row in sorted((r for r in made if r), key=lambda r: (r not in accepted, r)):
        made.get(tree["parents"][row], made[0]).children.append(made[row])  # an error's tree may be broken
    if path and path[len(path) - 1] < len(choices):
        last = path[len(path) - 1]
        title = f"the teacher's own token {choices[last]} {choice_pieces[last]!r}: the next root"
        bonus = _Node(visible(choice_pieces[last]), "teacher", "bonus", title)
        made[last].children.insert(0, bonus)
    return made[0]


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


def _draw_node(node: _Node, x: float) -> str:
    y = _MARGIN + node.line * (_HEIGHT + _GAP_Y)
    return (
        f'<g class="node {node.kind}"><title>{escape(node.title)}</title>'
        f'<rect x="{x:.1f}" y="{y}" width="{_box(node):.1f}" height="{_HEIGHT}" rx="6"/>'
        f'<text class="token" x="{x + _PADDING:.1f}" y="{y + 16}">{escape(node.label)}</text>'
        f'<text class="note" x="{x + _PADDING:.1f}" y="{y + 29}">{escape(node.note)}</text></g>'
    )


def _draw_edge(node: _Node, child: _Node, left: dict[int, float]) -> str:
    x1, x2 = left[node.depth] + _box(node), left[child.depth]
    y1, y2 = (_MARGIN + line * (_HEIGHT + _GAP_Y) + _HEIGHT / 2 for line in (node.line, child.line))
    bend = x2 - _GAP_X / 2
    curve = f"M{x1:.1f} {y1}H{bend - 6:.1f}C{bend:.1f} {y1} {bend:.1f} {y2} {x2:.1f} {y2}"
    return f'<path class="edge {child.kind}" d="{curve}"/>'


def _box(node: _Node) -> float:
    return 2 * _PADDING + max(_width(node.label) * _CHARACTER, len(node.note) * 6.4)


def _width(text: str) -> int:
    """Columns of a monospace font: wide East Asian characters take two, marks above others none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
