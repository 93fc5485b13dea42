"""The places where a text's last tokens stood before, and what followed them there.

Prompt lookup decoding proposes the one continuation of the latest match; here all matches vote, as in REST
(arXiv 2311.08252) and SuffixDecoding (arXiv 2411.04975): their continuations form a trie whose counts give
probabilities.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

_MATCHES = 24  # that vote, the latest ones; more would cost time and hardly change the order
_DOUBT = 1.0  # matches that might have gone on otherwise: a single one is believed by half


class Candidate(NamedTuple):
    """A node of a draft tree.

    Attributes:
        token: its id.
        parent: number of its parent among the candidates, from 1; 0 is the root.
        depth: 1 for the root's children.
        score: cumulative log-probability, below 0.
    """

    token: int
    parent: int
    depth: int
    score: float


class _Node:
    __slots__ = ("children", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.children: dict[int, _Node] = {}


class SuffixIndex:
    """Where every short run of tokens of a growing text ends."""

    def __init__(self, shortest: int, longest: int) -> None:
        """Look for runs of ``shortest`` to ``longest`` tokens, both at least 1."""
        self.shortest, self.longest = shortest, longest
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def follow(self, sequence: Sequence[int]) -> None:
        """Take in what a sequence has more than the text so far; another text is indexed anew."""
        known = len(self.tokens)
        if self.tokens != list(sequence[:known]):
            self.tokens, self._ends, known = [], {}, 0
        for end in range(known + 1, len(sequence) + 1):
            self.tokens.append(sequence[end - 1])
            for length in range(self.shortest, min(self.longest, end) + 1):
                self._ends.setdefault(tuple(self.tokens[end - length :]), []).append(end)

    def candidates(self, count: int, depth: int, branch: int) -> list[Candidate]:
        """The most probable continuations, parents before their children.

        The longest run of last tokens that stood before says where to look; shorter runs add their places
        with less weight.

        Args:
            count: most candidates.
            depth: most tokens of a path.
            branch: most children of a node.
        """
        top = _Node()
        size = len(self.tokens)
        matches, weight, counted = 0, 1.0, set()
        for length in range(min(self.longest, size), self.shortest - 1, -1):
            ends = self._ends.get(tuple(self.tokens[size - length :]), ())
            before = [end for end in ends[-_MATCHES - 1 :] if end < size and end not in counted]
            for end in reversed(before):
                if matches == _MATCHES:
                    break
                _vote(top, self.tokens[end : end + depth], weight)
                counted.add(end)
                matches += 1
            if before:
                weight *= 0.25
        return _best(top, count, branch)


def _vote(top: _Node, path: Sequence[int], weight: float) -> None:
    top.weight += weight
    node = top
    for token in path:
        node = node.children.setdefault(token, _Node())
        node.weight += weight


def _best(top: _Node, count: int, branch: int) -> list[Candidate]:
    """Best first, so that parents precede; ties go to the lower token."""
    found: list[Candidate] = []
    waiting: list[tuple[float, int, int, int, _Node]] = []  # -score, depth, parent, token

    def open_up(node: _Node, number: int, depth: int, score: float) -> None:
        children = sorted(node.children.items(), key=lambda pair: (-pair[1].weight, pair[0]))[:branch]
        for token, child in children:
            own = math.log(child.weight / (node.weight + _DOUBT))
            heapq.heappush(waiting, (-(score + own), depth + 1, number, token, child))

    open_up(top, 0, 0, 0.0)
    while waiting and len(found) < count:
        score, depth, parent, token, node = heapq.heappop(waiting)
        found.append(Candidate(token, parent, depth, -score))
        open_up(node, len(found), depth, -score)
    return found
