"""What must hold of the candidates that a draft grows, and of the choice among them; see ``invariants``."""

import numpy as np

from ms_eagle.reference.invariants import InvariantError, check_indices

Arrays = tuple[np.ndarray, ...]


def check_pool(pool: Arrays, vocabulary: int) -> None:
    """Candidates follow their parents, one level deeper and no more probable.

    Args:
        pool: tokens, scores, parents, depths, ``[B, P]`` each, see ``tree.Pool``.
        vocabulary: size of the teacher's vocabulary.

    Raises:
        InvariantError: ``index.range``, ``pool.order``, ``pool.depth`` or ``pool.score``.
    """
    tokens, scores, parents, depths = pool
    check_indices("pool tokens", tokens, vocabulary)
    check_indices("pool parents", parents, tokens.shape[1])
    for b in range(len(tokens)):
        for i in range(1, tokens.shape[1]):
            parent, where = int(parents[b, i]), f"batch {b}, candidate {i}"
            if parent >= i:
                raise InvariantError("pool.order", f"parent {parent}", where, "an earlier candidate")
            if depths[b, i] != depths[b, parent] + 1:
                expected = f"one more than the parent's {depths[b, parent]}"
                raise InvariantError("pool.depth", f"depth {depths[b, i]}", where, expected)
            if not scores[b, i] <= scores[b, parent]:
                expected = f"at most the parent's {scores[b, parent]}"
                raise InvariantError("pool.score", f"score {scores[b, i]}", where, expected)


def check_beam(beam: Arrays, pool: Arrays, parents: int) -> None:
    """The nodes to forward next are candidates, and every index that goes with them is in range.

    Args:
        beam: tokens, scores, nodes, parent rows, ``[B, k]`` each, and lineage ``[B, l, k]``; see
            ``tree.Beam``.
        pool: see ``check_pool``.
        parents: rows of the forward that the beam's nodes came from.

    Raises:
        InvariantError: ``index.range`` or ``pool.beam``.
    """
    tokens, scores, nodes, parent_rows, lineage = beam
    check_indices("beam nodes", nodes, pool[0].shape[1])
    check_indices("beam parent rows", parent_rows, parents)
    check_indices("beam lineage", lineage, tokens.shape[1])
    for name, values, known in (("token", tokens, pool[0]), ("score", scores, pool[1])):
        wanted = np.take_along_axis(known, nodes.astype(np.int64), 1)
        wrong = np.argwhere(values != wanted)
        if len(wrong):
            b, i = (int(x) for x in wrong[0])
            where, expected = f"batch {b}, beam row {i}", f"{wanted[b, i]}, that of candidate {nodes[b, i]}"
            raise InvariantError("pool.beam", f"{name} {values[b, i]}", where, expected)


def check_selection(pool: Arrays, tree: Arrays, log_confidence: float) -> None:
    """A tree's rows are the root and the pool's best candidates in pool order, then padding.

    Args:
        pool: see ``check_pool``.
        tree: tokens, parents, depths, laid out, scores, ``[B, N]`` each; parents are rows.
        log_confidence: candidates of a lower score are left out.

    Raises:
        InvariantError: ``tree.selection``.
    """
    tokens, scores, parents, depths = pool
    rows = tree[0].shape[1]
    for b in range(len(tokens)):
        best = np.argsort(-scores[b], kind="stable")[:rows]  # the earlier of equals
        nodes = sorted(int(i) for i in best if scores[b, i] >= log_confidence)
        row_of = {node: row for row, node in enumerate(nodes)}
        if any(int(parents[b, node]) not in row_of for node in nodes):
            raise InvariantError("tree.selection", nodes, f"batch {b}", "candidates with their parents")
        wanted = [(tokens[b, i], row_of[int(parents[b, i])], depths[b, i], True, scores[b, i]) for i in nodes]
        wanted += [(0, 0, 0, False, 0.0)] * (rows - len(nodes))
        for row, expected in enumerate(wanted):
            found = tuple(array[b, row] for array in tree)
            if found != expected:
                names = "token, parent, depth, laid out, score"
                raise InvariantError(
                    "tree.selection", found, f"batch {b}, row {row} ({names})", f"{expected}"
                )
