"""Slow numpy and plain-Python counterparts of the tree functions, written from the definitions."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Node:
    token: int
    score: np.float32
    depth: int
    parent: int  # index into the pool; the root's is 0


def first(scores, count):
    """Indices of the `count` best: higher score, then lower index."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def grow(root, levels):
    """Grow one tree.

    `levels` holds `(tokens, log_probs)`: `[k]` for the root's children, then `[k, k]` per level by row of
    the forward. Returns the pool, and per level the forwarded nodes and their lineage.
    """
    tokens, log_probs = levels[0]
    pool = [Node(root, np.float32(0), 0, 0)]
    for token, own in zip(tokens, log_probs, strict=True):
        pool.append(Node(int(token), np.float32(own), 1, 0))
    forwarded = list(range(1, len(pool)))
    lineages = [[[row] for row in range(len(tokens))]]
    beams = [forwarded]
    for level, (tokens, log_probs) in enumerate(levels[1:]):
        start = len(pool)
        for row, parent in enumerate(forwarded):
            for token, own in zip(tokens[row], log_probs[row], strict=True):
                score = np.float32(pool[parent].score + np.float32(own))
                pool.append(Node(int(token), score, level + 2, parent))
        k = len(forwarded)
        chosen = first([node.score for node in pool[start:]], k)
        lineages.append([[*lineages[-1][i // k], row] for row, i in enumerate(chosen)])
        forwarded = [start + i for i in chosen]
        beams.append(forwarded)
    return pool, beams, lineages


def tensorize(pool, budget, depth, log_confidence):
    """Rows of the tree batch: `(tokens, parents, depths, valid, ancestors, scores)` without batch axis."""
    kept = first([node.score for node in pool], budget + 1)
    kept = sorted(i for i in kept if pool[i].score >= log_confidence)
    row_of = {node: row for row, node in enumerate(kept)}
    rows = budget + 1
    tokens, parents, depths = (np.zeros(rows, np.int32) for _ in range(3))
    valid, scores = np.zeros(rows, np.bool_), np.zeros(rows, np.float32)
    for row, i in enumerate(kept):
        node = pool[i]
        tokens[row], parents[row], depths[row] = node.token, row_of[node.parent], node.depth
        valid[row], scores[row] = True, node.score
    ancestors = np.zeros((depth + 1, rows), np.int32)
    for row in range(rows):
        node = row
        for level in range(depth + 1):
            ancestors[level, row] = node
            node = parents[node]
    return tokens, parents, depths, valid, ancestors, scores


def path_to_root(parents, row):
    path = [row]
    while row:
        row = int(parents[row])
        path.append(row)
    return path


def tree_mask(n, parents, valid, slots):
    """`[N, S]`, True = discard."""
    mask = np.ones((len(parents), slots), np.bool_)
    for row in range(len(parents)):
        if not valid[row]:
            mask[row, n] = False
            continue
        mask[row, :n] = False
        for node in path_to_root(parents, row):
            mask[row, n + node] = False
    return mask


def causal_mask(n, count, rows, slots):
    """`[T, S]`, True = discard."""
    mask = np.ones((rows, slots), np.bool_)
    for row in range(rows):
        if row < count:
            mask[row, : n + row + 1] = False
        else:
            mask[row, n] = False
    return mask


def level_mask(n, lineage, slots):
    """`[k, S_d]`, True = discard; `lineage` lists per row its ancestors' rows, itself last."""
    mask = np.ones((len(lineage), slots), np.bool_)
    for row, blocks in enumerate(lineage):
        mask[row, :n] = False
        for level, ancestor in enumerate(blocks):
            mask[row, n + level * len(lineage) + ancestor] = False
    return mask


def accept(tokens, parents, valid, choices, depth):
    """Walk from the root: `(accepted, path, emitted, count)` without batch axis."""
    walk, node = [0], 0
    while True:
        matches = [
            row
            for row in range(1, len(tokens))
            if valid[row] and parents[row] == node and tokens[row] == choices[node]
        ]
        if not matches:
            break
        (node,) = matches
        walk.append(node)
    path, emitted = np.zeros(depth + 1, np.int32), np.zeros(depth + 1, np.int32)
    for i, row in enumerate(walk):
        path[i] = row
        emitted[i] = tokens[walk[i + 1]] if i + 1 < len(walk) else choices[row]
    return len(walk) - 1, path, emitted, len(walk)
