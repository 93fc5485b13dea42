"""How often an EAGLE-3 head proposes what its teacher chooses, depth by depth, over whole passages.

The head is measured as it drafts. Row ``p`` takes the true feature of position ``p`` and the token at
``p + 1``; its proposal, of depth 1, is for ``p + 2``. Depth ``d`` goes on from row ``p`` with the head's own
features and the passage's tokens. All starting positions are unrolled at once, each seeing true rows up to
its own and then only its own chain (EAGLE-3, arXiv 2503.01840, section 3.1, "training-time test").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_eagle.drafters.eagle3.blueprint import build_head
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.head import DraftHead, Fuse
from ms_eagle.errors import UserError
from ms_eagle.models.backend import Backend
from ms_eagle.models.reading import Reader
from ms_eagle.models.teacher import Teacher
from ms_eagle.sampling.choice import choose_greedy
from ms_eagle.tree.growth import top_children

_CONTEXT = 8  # tokens: a starting position whose last ones occurred before adds nothing new


@dataclass(frozen=True)
class Passage:
    """A text as the teacher read it.

    Attributes:
        tokens: ``[T + 1]`` int32.
        choices: ``[T + 1]`` int32, the teacher's most likely token after each of them.
        taps: float32 ``[T + 1, E_teacher]``: what entered a block at each position, by block.
        first: the first position whose choice is drafted for; before it is context.
    """

    tokens: np.ndarray
    choices: np.ndarray
    taps: Mapping[int, np.ndarray]
    first: int

    @property
    def rows(self) -> int:
        """T: rows of the drafter, pairs of a position and the next token."""
        return len(self.tokens) - 1

    def measurable(self, depth: int) -> np.ndarray:
        """Which chains reach which depth on the teacher's own path, bool ``[depth, T]``.

        A chain from row ``p`` is at depth ``d`` while the tokens it was given past the first are the
        teacher's choices, and ends with the passage. Rows that repeat an earlier context start none.
        """
        rows = self.rows
        starts = np.array([row + 1 >= self.first for row in range(rows)]) & ~self._repeated()
        own = np.append(False, self.tokens[1:] == self.choices[:-1])  # the token is the teacher's
        found = np.zeros((depth, rows), bool)
        for row in np.flatnonzero(starts):
            for d in range(1, depth + 1):
                if row + d > rows or (d > 1 and not own[row + d]):
                    break
                found[d - 1, row] = True
        return found

    def targets(self, depth: int) -> np.ndarray:
        """The teacher's choice that depth ``depth`` of each chain is for, ``[T]``; 0 past the end."""
        rows = self.rows
        place = np.arange(rows) + depth
        return np.where(place <= rows, self.choices[np.minimum(place, rows)], 0)

    def _repeated(self) -> np.ndarray:
        """Whether a row's last tokens have occurred before, ``[T]`` bool: small teachers fall into loops."""
        seen: set[tuple[int, ...]] = set()
        repeated = np.zeros(self.rows, bool)
        for row in range(self.rows):
            context = tuple(self.tokens[max(0, row + 2 - _CONTEXT) : row + 2].tolist())
            repeated[row] = context in seen
            seen.add(context)
        return repeated


class _ChoicesAndTaps(nn.Cell):
    """As a ``Reading`` hands over: choices ``[B, T]``, float32 taps, and whether logits are finite."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(self, hidden: Tensor, taps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.teacher.logits(hidden)
        return choose_greedy(logits), taps.astype(ms.float32), ops.isfinite(logits).all(-1)


class TeacherReader:
    """Reads passages with a teacher of batch 1 that taps the blocks of interest."""

    def __init__(self, teacher: Teacher, chunk: int) -> None:
        self._taps, self._reader = sorted(teacher.taps), Reader(teacher, _ChoicesAndTaps(teacher), chunk)

    def read(self, tokens: Sequence[int], first: int) -> Passage:
        """Read a passage of at least two tokens; ``first`` as in `Passage`.

        Raises:
            UserError: the teacher's logits are not finite.
        """
        columns = zip(*(piece.values for piece in self._reader.pieces([(0, tokens)])), strict=True)
        choices, taps, finite = (np.concatenate(column) for column in columns)
        if not finite.all():
            raise UserError(
                "the model's logits are not finite (NaN or infinity): use another model.dtype, or check "
                "its weights."
            )
        blocks = np.split(taps, len(self._taps), axis=1)
        return Passage(np.array(tokens, np.int32), choices, dict(zip(self._taps, blocks, strict=True)), first)


@dataclass(frozen=True)
class Agreement:
    """What was measured, over all passages; lists go by depth, from 1.

    Attributes:
        positions: how many chains reach the depth.
        top1, topk: share of them whose proposal, or one of whose best k, is the teacher's choice; None
            where there are none.
        accept_chain: mean number of leading depths that top-1 gets right, over chains of full depth: what a
            chain would accept per cycle, without the bonus token. None where there are none.
        accept_branch: the same for top-k: more than a tree of any budget accepts.
        coverage: share of the teacher's choices that the head can propose at all.
        relabelled: top-1 of depth 1 if each draft id stood for the token it meets most often elsewhere.
        finite: no logit is NaN or infinite.
    """

    positions: tuple[int, ...]
    top1: tuple[float | None, ...]
    topk: tuple[float | None, ...]
    accept_chain: float | None
    accept_branch: float | None
    coverage: float
    relabelled: float
    finite: bool


class _Rows(nn.Cell):
    """Rows through the drafter: the best children of each, and its next feature."""

    def __init__(self, drafter: DraftHead, branch: int) -> None:
        super().__init__()
        self.drafter, self.branch = drafter, branch

    def construct(
        self, features: Tensor, tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments as for ``DraftHead`` with B = 1; draft ids and log-probabilities ``[N, k]``, features."""
        hidden = self.drafter(tokens, features, positions, slots, mask)
        logits = self.drafter.logits(hidden)
        ids, log_probs = top_children(logits.reshape(logits.shape[1], logits.shape[2]), self.branch)
        return ids, log_probs, self.drafter.next_feature(hidden)


class _Features(nn.Cell):
    """Taps to features."""

    def __init__(self, fuse: Fuse, dtype: ms.Type) -> None:
        super().__init__()
        self.fuse, self.dtype = fuse, dtype

    def construct(self, taps: Tensor) -> Tensor:
        return self.fuse(taps.astype(self.dtype))


class HeadMeter:
    """Measures one head; compiled once for all passages."""

    def __init__(
        self,
        head: Head,
        teacher: Teacher,
        backend: Backend,
        *,
        rows: int,
        depth: int,
        branch: int,
    ) -> None:
        """Build the drafter.

        Args:
            head: its taps and vocabulary map do not matter here.
            teacher: lends its embedding and LM head.
            backend: as the drafter will run.
            rows: most rows of a passage.
            depth, branch: D and k, how far and how wide to measure.
        """
        self._rows, self._depth = rows, depth
        drafter = build_head(head, teacher, backend, slots=depth * rows + 1, positions=rows + depth)
        self._features, self._step = _Features(drafter.fuse, drafter.dtype), _Rows(drafter, branch)

    def measure(self, passages: Sequence[Passage], taps: Sequence[int], target_ids: np.ndarray) -> Agreement:
        """Draft from every position of every passage.

        Args:
            passages: of up to ``rows`` rows each, with ``taps`` among their blocks.
            taps: blocks in the order of concatenation.
            target_ids: ``[V_d]``, the token of each draft id.
        """
        ranks: list[list[np.ndarray]] = [[] for _ in range(self._depth)]
        guesses, targets, finite, chains = [], [], True, []
        for passage in passages:
            ids, sound = self._draft(passage, taps)
            finite = finite and sound
            measurable = passage.measurable(self._depth)
            rank = np.stack(
                [
                    _rank(target_ids[ids[d]], passage.targets(d + 1))  # [T], k where it is not among them
                    for d in range(self._depth)
                ]
            )
            for d in range(self._depth):
                ranks[d].append(rank[d][measurable[d]])
            chains.append(rank[:, measurable[self._depth - 1]])
            guesses.append(ids[0, :, 0][measurable[0]])
            targets.append(passage.targets(1)[measurable[0]])
        joined = [np.concatenate(each) for each in ranks]
        whole = np.concatenate(chains, 1)  # [D, chains]
        goal = np.concatenate(targets)
        branch = ids.shape[2]
        return Agreement(
            positions=tuple(len(each) for each in joined),
            top1=tuple(_share(each == 0) for each in joined),
            topk=tuple(_share(each < branch) for each in joined),
            accept_chain=_leading(whole == 0),
            accept_branch=_leading(whole < branch),
            coverage=_share(np.isin(goal, target_ids)) or 0.0,
            relabelled=_relabelled(np.concatenate(guesses), goal),
            finite=finite,
        )

    def _draft(self, passage: Passage, taps: Sequence[int]) -> tuple[np.ndarray, bool]:
        """Draft ids ``[D, T, k]`` of every chain, and whether all logits are finite."""
        rows, slots = self._rows, self._depth * self._rows + 1
        count, row, slot = passage.rows, np.arange(self._rows), np.arange(slots)
        states = np.zeros((1, rows, len(taps) * next(iter(passage.taps.values())).shape[1]), np.float32)
        states[0, :count] = np.concatenate([passage.taps[tap][:count] for tap in taps], 1)
        features = self._features(Tensor(states))
        seen = slot[None] <= row[:, None]  # [rows, S]; rows past the passage follow it and disturb none
        found, finite = [], True
        for d in range(1, self._depth + 1):
            place = d - 1
            tokens = np.zeros((1, rows), np.int32)
            usable = max(0, count - place)
            tokens[0, :usable] = passage.tokens[d : d + usable]
            own = place * rows + row
            seen = seen | (slot[None] == own[:, None])
            ids, log_probs, features = self._step(
                features,
                Tensor(tokens),
                Tensor((row + place)[None].astype(np.int32)),
                Tensor(own[None].astype(np.int32)),
                Tensor(~seen[None, None]),
            )
            found.append(ids.asnumpy()[:count])
            finite = finite and bool(np.isfinite(log_probs.asnumpy()[:usable, 0]).all())
        return np.stack(found), finite


def _rank(proposals: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Where ``targets`` ``[T]`` stand among ``proposals`` ``[T, k]``; k where they do not."""
    same = proposals == targets[:, None]
    return np.where(same.any(1), same.argmax(1), proposals.shape[1])


def _share(hits: np.ndarray) -> float | None:
    return float(hits.mean()) if hits.size else None


def _leading(hits: np.ndarray) -> float | None:
    """Mean number of leading hits of chains ``[D, chains]``."""
    return float(np.cumprod(hits, 0).sum(0).mean()) if hits.shape[1] else None


def _relabelled(guesses: np.ndarray, targets: np.ndarray) -> float:
    """Share of pairs whose target is what the same guess meets most often among the other pairs."""
    counts: dict[int, dict[int, int]] = {}
    for guess, target in zip(guesses.tolist(), targets.tolist(), strict=True):
        met = counts.setdefault(guess, {})
        met[target] = met.get(target, 0) + 1
    right = 0
    for guess, target in zip(guesses.tolist(), targets.tolist(), strict=True):
        met = counts[guess]
        others = max((number for token, number in met.items() if token != target), default=0)
        right += met[target] - 1 > others
    return right / len(guesses) if len(guesses) else 0.0
