"""What must always hold in a cycle, checked in numpy on arrays read back from the device.

Reference mode runs every check after the stage it concerns. Each raises `InvariantError` at the first
violation. The checks share no code with the functions they check.
"""

import numpy as np


class InvariantError(Exception):
    """An invariant does not hold: a fault of the program, not of its user.

    Attributes:
        invariant: its name, such as `tree.parent_range`.
        found: the offending value.
        where: its place: array, batch element, row, slot.
    """

    def __init__(self, invariant: str, found: object, where: str, expected: str) -> None:
        super().__init__(f"invariant {invariant}: found {found} at {where}; expected {expected}")
        self.invariant = invariant
        self.found = found
        self.where = where


def _place(name: str, index: np.ndarray) -> str:
    return f"{name}[{', '.join(str(int(i)) for i in index)}]"


def check_indices(name: str, array: np.ndarray, upper: int) -> None:
    """Every index handed to a gather or scatter lies in `[0, upper)`.

    Args:
        name: what the array is, for the message.
        array: integers of any shape.
        upper: length of the indexed axis.

    Raises:
        InvariantError: `index.range`.
    """
    wrong = np.argwhere((array < 0) | (array >= upper))
    if len(wrong):
        raise InvariantError("index.range", array[tuple(wrong[0])], _place(name, wrong[0]), f"[0, {upper})")


def check_tree(
    tokens: np.ndarray, parents: np.ndarray, depths: np.ndarray, valid: np.ndarray, vocabulary: int
) -> None:
    """The rows form a tree with row 0 as root, padding as documented, and distinct siblings.

    Args:
        tokens: `[B, N]` integers; likewise parents and depths.
        parents: rows.
        depths: 0 for the root and padding.
        valid: `[B, N]` bool.
        vocabulary: size of the teacher's vocabulary.

    Raises:
        InvariantError: `tree.parent_range`, `tree.token_range`, `tree.root`, `tree.padding`,
            `tree.orphan`, `tree.depth`, `tree.reach` or `tree.siblings`.
    """
    batch, rows = parents.shape
    for name, array, upper in (("parent", parents, rows), ("token", tokens, vocabulary)):
        wrong = np.argwhere((array < 0) | (array >= upper))
        if len(wrong):
            place = _place(f"{name}s", wrong[0])
            raise InvariantError(f"tree.{name}_range", array[tuple(wrong[0])], place, f"[0, {upper})")
    for b in range(batch):
        if parents[b, 0] or depths[b, 0]:
            found = f"parent {parents[b, 0]}, depth {depths[b, 0]}"
            raise InvariantError("tree.root", found, f"batch {b}, row 0", "parent 0, depth 0")
        children: dict[tuple[int, int], int] = {}
        for r in range(1, rows):
            parent, depth, token = int(parents[b, r]), int(depths[b, r]), int(tokens[b, r])
            where = f"batch {b}, row {r}"
            if not valid[b, r]:
                if parent or depth or token:
                    found = f"parent {parent}, depth {depth}, token {token}"
                    raise InvariantError("tree.padding", found, where, "parent 0, depth 0, token 0")
                continue
            if not valid[b, parent]:
                raise InvariantError(
                    "tree.orphan", f"padding row {parent} as parent", where, "a valid parent"
                )
            if not depths[b, parent] < depth:
                found = f"depth {depth} under a parent of depth {depths[b, parent]}"
                raise InvariantError("tree.depth", found, where, "the parent's depth to be smaller")
            hops, node = 0, r
            while node and hops <= rows:
                node, hops = int(parents[b, node]), hops + 1
            if hops != depth:
                raise InvariantError("tree.reach", f"{hops} hops to row 0", where, f"{depth}, its depth")
            twin = children.setdefault((parent, token), r)
            if twin != r:
                found = f"token {token}, also at row {twin}"
                raise InvariantError("tree.siblings", found, where, f"distinct tokens under row {parent}")


def _path_to_root(parents: np.ndarray, row: int) -> set[int]:
    path = {row}
    while row:
        row = int(parents[row])
        if row in path:
            raise InvariantError("tree.reach", f"a cycle through row {row}", "parents", "a path to row 0")
        path.add(row)
    return path


def check_ancestors(ancestors: np.ndarray, parents: np.ndarray) -> None:
    """The ancestor table repeats the parents: `A[0] = arange(N)`, `A[l+1] = parents[A[l]]`.

    Args:
        ancestors: `[B, D+1, N]` integers.
        parents: `[B, N]` integers in range.

    Raises:
        InvariantError: `tree.ancestors`.
    """
    for b in range(len(parents)):
        row = np.arange(parents.shape[1])
        for level in range(ancestors.shape[1]):
            wrong = np.flatnonzero(ancestors[b, level] != row)
            if len(wrong):
                index = np.array([b, level, wrong[0]])
                found = ancestors[tuple(index)]
                raise InvariantError("tree.ancestors", found, _place("ancestors", index), f"{row[wrong[0]]}")
            row = parents[b][row]


def check_tree_mask(mask: np.ndarray, start: np.ndarray, parents: np.ndarray, valid: np.ndarray) -> None:
    """Row `r` keeps exactly slots `0..n-1` and its ancestors-or-self; padding keeps slot `n` alone.

    Args:
        mask: `[B, 1, N, S]` bool, True = discard.
        start: `[B]` integers, the committed length `n`.
        parents: `[B, N]` integers in range.
        valid: `[B, N]` bool.

    Raises:
        InvariantError: `mask.shape`, `mask.dtype` or `mask.keys`.
    """
    batch, rows = parents.shape
    if mask.shape[:3] != (batch, 1, rows):
        raise InvariantError("mask.shape", mask.shape, "mask", f"({batch}, 1, {rows}, S)")
    if mask.dtype != np.bool_:
        raise InvariantError("mask.dtype", mask.dtype, "mask", "bool, True = discard")
    for b in range(batch):
        n = int(start[b])
        for r in range(rows):
            wanted = {n}
            if valid[b, r]:
                wanted = set(range(n)) | {n + node for node in _path_to_root(parents[b], r)}
            _check_keys(np.flatnonzero(~mask[b, 0, r]).tolist(), wanted, f"batch {b}, row {r}")


def check_level_mask(mask: np.ndarray, start: np.ndarray, base: np.ndarray, lineage: np.ndarray) -> None:
    """A drafter level's row keeps slots `0..n-1`, its ancestors' slots in earlier blocks, and its own.

    Args:
        mask: `[B, 1, k, S_d]` bool, True = discard.
        start: `[B]` integers, positions committed in the drafter's cache.
        base: `[B]` integers, slot of the first level block.
        lineage: `[B, l, k]` integers, see `ms_eagle.tree.growth.Beam`.

    Raises:
        InvariantError: `mask.keys`.
    """
    batch, levels, branch = lineage.shape
    for b in range(batch):
        for r in range(branch):
            blocks = {int(base[b]) + level * branch + int(lineage[b, level, r]) for level in range(levels)}
            wanted = set(range(int(start[b]))) | blocks
            _check_keys(np.flatnonzero(~mask[b, 0, r]).tolist(), wanted, f"batch {b}, level row {r}")


def _check_keys(kept: list[int], wanted: set[int], where: str) -> None:
    extra, missing = sorted(set(kept) - wanted), sorted(wanted - set(kept))
    if extra:
        raise InvariantError("mask.keys", f"key {extra[0]} kept", where, "it to be discarded")
    if missing:
        raise InvariantError("mask.keys", f"key {missing[0]} discarded", where, "it to be kept")


def check_path(
    path: np.ndarray,
    count: np.ndarray,
    tokens: np.ndarray,
    parents: np.ndarray,
    valid: np.ndarray,
    choices: np.ndarray,
    emitted: np.ndarray,
) -> None:
    """The path starts at the root, follows the teacher's choices, could go no further, and was emitted.

    Args:
        path: `[B, D+1]` integers, rows.
        count: `[B]` integers: entries in use, 0 for an element that takes no part.
        tokens: `[B, N]` integers; likewise parents, choices.
        parents: rows.
        valid: `[B, N]` bool.
        choices: the teacher's token after each row.
        emitted: `[B, D+1]` integers, the accepted tokens and the bonus, then 0.

    Raises:
        InvariantError: `path.count`, `path.root`, `path.link`, `path.match`, `path.longest` or
            `output.emitted`.
    """
    batch, levels = path.shape
    check_indices("path", path, parents.shape[1])
    for b in range(batch):
        used = int(count[b])
        if not 0 <= used <= levels:
            raise InvariantError("path.count", used, f"batch {b}", f"0 to {levels}")
        if used and path[b, 0] != 0:
            raise InvariantError("path.root", path[b, 0], f"batch {b}, depth 0", "row 0")
        for depth in range(1, used):
            row, above = int(path[b, depth]), int(path[b, depth - 1])
            where = f"batch {b}, depth {depth}"
            if not valid[b, row] or parents[b, row] != above:
                raise InvariantError("path.link", f"row {row}", where, f"a valid child of row {above}")
            if tokens[b, row] != choices[b, above]:
                expected = f"the teacher's choice {choices[b, above]}"
                raise InvariantError("path.match", f"token {tokens[b, row]}", where, expected)
        if used:
            last = int(path[b, used - 1])
            more = valid[b] & (parents[b] == last) & (tokens[b] == choices[b, last])
            more[0] = False  # the root is its own parent
            if more.any():
                found = f"an end at row {last}"
                expected = f"the path to go on to row {np.flatnonzero(more)[0]}"
                raise InvariantError("path.longest", found, f"batch {b}, depth {used - 1}", expected)
        spoken = [int(choices[b, path[b, depth]]) for depth in range(used)] + [0] * (levels - used)
        if emitted[b].tolist() != spoken:
            raise InvariantError("output.emitted", emitted[b].tolist(), f"batch {b}", f"{spoken}")


def check_cache_kept(name: str, before: np.ndarray, after: np.ndarray, start: np.ndarray) -> None:
    """A forward never changes a slot below the committed length, bit for bit.

    Args:
        name: which cache, for the message.
        before: `[B, H_kv, S, d]`.
        after: the same cache after the forward.
        start: `[B]` integers, the committed length `n`.

    Raises:
        InvariantError: `cache.kept`.
    """
    slots = np.arange(before.shape[2])
    allowed = slots[None] >= np.asarray(start)[:, None]
    _check_unchanged("cache.kept", name, before, after, allowed, "a slot below n to stay as it was")


def check_cache_writes(name: str, before: np.ndarray, after: np.ndarray, written: np.ndarray) -> None:
    """A forward or commit changes only the slots it was given to write, bit for bit.

    Args:
        name: which cache, for the message.
        before: `[B, H_kv, S, d]`.
        after: the same cache afterwards.
        written: `[B, W]` integers, slots that may differ.

    Raises:
        InvariantError: `index.range` for a slot outside the cache, `cache.writes` for a change elsewhere.
    """
    check_indices(f"{name} slots", written, before.shape[2])
    allowed = np.zeros((before.shape[0], before.shape[2]), np.bool_)
    np.put_along_axis(allowed, np.asarray(written, np.int64), True, 1)
    _check_unchanged("cache.writes", name, before, after, allowed, "only the written slots to change")


def _check_unchanged(
    invariant: str, name: str, before: np.ndarray, after: np.ndarray, allowed: np.ndarray, expected: str
) -> None:
    same = before.view(f"u{before.itemsize}") == after.view(f"u{after.itemsize}")  # bits: NaN equals itself
    wrong = np.argwhere(~same.all(-1) & ~allowed[:, None])
    if len(wrong):
        b, head, slot = (int(i) for i in wrong[0])
        where = f"{name}, batch {b}, head {head}, slot {slot}"
        raise InvariantError(invariant, after[b, head, slot, ~same[b, head, slot]][0], where, expected)


def check_cache_equal(
    name: str, cache: np.ndarray, fresh: np.ndarray, length: np.ndarray, tolerance: float = 0.0
) -> None:
    """After a commit the cache equals that of a fresh sequential run over the emitted tokens.

    Args:
        name: which cache, for the message.
        cache: `[B, H_kv, S, d]`.
        fresh: `[B, H_kv, S', d]`, computed anew.
        length: `[B]` integers, slots to compare.
        tolerance: largest absolute difference; 0 where the kernels treat rows independently.

    Raises:
        InvariantError: `cache.equal`.
    """
    for b, n in enumerate(np.asarray(length).tolist()):
        found, wanted = cache[b, :, :n].astype(np.float64), fresh[b, :, :n].astype(np.float64)
        difference = np.abs(found - wanted)
        wrong = np.argwhere(~(difference <= tolerance))  # catches NaN too
        if len(wrong):
            place = tuple(wrong[0])
            where = f"{name}, batch {b}, head {place[0]}, slot {place[1]}"
            expected = f"{wanted[place]} within {tolerance}"
            raise InvariantError("cache.equal", found[place], where, expected)


def check_output(emitted: list[int], teacher: list[int], where: str) -> None:
    """Speculative output equals teacher-only decoding.

    Args:
        emitted: token ids of the speculative run.
        teacher: token ids of the teacher alone.
        where: prompt and turn, for the message.

    Raises:
        InvariantError: `output.equal`, at the first difference.
    """
    for i, (token, wanted) in enumerate(zip(emitted, teacher, strict=False)):
        if token != wanted:
            raise InvariantError("output.equal", f"token {token}", f"{where}, token {i}", f"{wanted}")
    if len(emitted) != len(teacher):
        raise InvariantError("output.equal", f"{len(emitted)} tokens", where, f"{len(teacher)}")
