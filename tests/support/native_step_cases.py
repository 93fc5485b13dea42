"""Random calls of the native ops between a cycle's forwards, against the slow counterparts of the stock ones.

As a program: ``python -m support.native_step_cases LIBRARY ROUNDS`` runs these and those of ``native_cases``.
"""

import sys
from pathlib import Path

import numpy as np
from support import native_cases, native_code_cases, reference_sampling, reference_tree
from support.native_cases import EPS, close, normal, rms_norm, seen_slots, spoil_one_argument, weight_of

from ms_eagle.kernels.library import ABSENT, Library
from ms_eagle.sampling.options import SamplingParams, params_tensor

INT, FLOAT = np.int32, np.float32
DECAY = (2.0**40 * np.exp(-(np.arange(1 << 14) + 0.5) / 512)).astype(FLOAT)


def int32(*values):
    return np.array(values, INT)


def outputs(*shapes):
    """Arrays to be written: ``("i", 2, 3)`` is int32 [2, 3]; ``f`` float32, ``b`` bool. Filled with junk."""
    kinds = {"i": (INT, -7), "f": (FLOAT, np.nan), "b": (np.bool_, True)}
    return [np.full(shape, kinds[kind][1], kinds[kind][0]) for kind, *shape in shapes]


def grown(batch, size, levels, branch):
    """Room for a pool, a beam and the flag."""
    pool = [(kind, batch, size) for kind in "ifii"]
    beam = [(kind, batch, branch) for kind in "ifii"]
    return outputs(*pool, *beam, ("i", batch, levels, branch), ("b", batch))


def random_log_probs(rng, *shape):
    """Few values, so that ties abound; some -inf, some 0, at times a little above 0."""
    values = np.array([-0.1, -0.5, -0.5, -2.0, -2.5, 0.0, 1e-7, -np.inf], FLOAT)
    return rng.choice(values, shape).astype(FLOAT)


def log_softmax(x):
    x = x.astype(np.float64) - x.max()
    return x - np.log(np.exp(x).sum())


def check_children(library, rng):
    batch, rows, width = int(rng.integers(1, 3)), int(rng.integers(1, 9)), int(rng.integers(2, 70))
    size = int(rng.integers(2, 700))
    k = int(rng.integers(1, min(size, 17) + 1))
    weight, norm = weight_of(rng, size, width), normal(rng, width)
    tied = bool(rng.integers(2))
    if tied:  # every column twice at least: the lower one comes first
        weight = weight[rng.integers(0, max(1, size // 2), size)]
    names = rng.permutation(10**6)[:size].astype(INT)
    x, packed = normal(rng, batch, rows, width), library.pack(weight)
    tokens, log_probs = outputs(("i", batch, rows, k), ("f", batch, rows, k))
    library.call("ChildRows", (x, norm, packed, names, EPS), (tokens, log_probs))
    logits = np.empty((batch, rows, size), FLOAT)
    library.call("LinearRows", (x, norm, packed, ABSENT, EPS), (logits,))
    columns = np.argsort(names)[np.searchsorted(np.sort(names), tokens)]
    for b, r in np.ndindex(batch, rows):
        want = log_softmax(logits[b, r])
        close(log_probs[b, r], want[columns[b, r]])
        order = np.argsort(-logits[b, r], kind="stable")[:k]
        # Logits that differ by less than a rounding may share a log-probability: then the lower column wins.
        if (np.diff(np.sort(np.unique(logits[b, r]))) > 1e-4).all():
            np.testing.assert_array_equal(columns[b, r], order)
        np.testing.assert_allclose(want[columns[b, r]], want[order], atol=1e-5)
        pairs = list(zip(-log_probs[b, r], columns[b, r], strict=True))
        assert pairs == sorted(pairs)
        one, its = outputs(("i", 1, 1, k), ("f", 1, 1, k))
        alone = x[b : b + 1, r : r + 1].copy()
        library.call("ChildRows", (alone, norm, packed, names, EPS), (one, its))
        assert (one.tobytes(), its.tobytes()) == (tokens[b, r].tobytes(), log_probs[b, r].tobytes())


def check_children_without_a_distribution(library, rng):
    size = int(rng.integers(3, 200))
    weight = np.zeros((size, 4), FLOAT)
    weight[:, 0] = rng.permutation(size)
    weight[size // 2, 1:3] = 1.0
    x = np.zeros((1, 5, 4), FLOAT)
    x[0, :, 0] = 1.0
    x[0, 1, 1], x[0, 2, 1], x[0, 3, 2] = np.nan, np.inf, -1e5
    weight[:, 3], x[0, 4, 3] = 3e38, -3e38  # every logit is -inf
    weight[:, 3][weight[:, 3] == 0] = 3e38
    tokens, log_probs = outputs(("i", 1, 5, 3), ("f", 1, 5, 3))
    names = np.arange(size, dtype=INT)
    library.call("ChildRows", (x, ABSENT, library.pack(weight), names, EPS), (tokens, log_probs))
    assert np.isnan(log_probs).all(2)[0].tolist() == [False, True, True, False, True]
    assert ((tokens >= 0) & (tokens < size)).all()
    assert tokens[0, 0].tolist() == np.argsort(-weight[:, 0])[:3].tolist()


def check_pairs_and_picks(library, rng):
    batch, rows, sources = int(rng.integers(1, 3)), int(rng.integers(1, 9)), int(rng.integers(1, 6))
    width, embedded, size = int(rng.integers(1, 90)), int(rng.integers(1, 90)), int(rng.integers(1, 70))
    weight, norms = weight_of(rng, size, embedded), (normal(rng, embedded), normal(rng, width))
    tokens = rng.integers(0, size, (batch, rows)).astype(INT)
    features = normal(rng, batch, sources, width)
    which = rng.integers(0, sources, (batch, rows)).astype(INT)
    (picked,) = outputs(("f", batch, rows, width))
    library.call("PickRows", (features, which), (picked,))
    np.testing.assert_array_equal(picked, np.take_along_axis(features, which[:, :, None], 1))
    normed = int(rng.integers(2))
    x, residual = outputs(("f", batch, rows, embedded + width), ("f", batch, rows, width))
    inputs = (tokens, picked, library.pack(weight), int32(size), *norms, int32(normed), EPS)
    library.call("PairRows", inputs, (x, residual))
    want = rms_norm(picked, norms[1])
    close(x[:, :, :embedded], rms_norm(weight[tokens], norms[0]))
    close(x[:, :, embedded:], want)
    close(residual, want if normed else picked)
    count = rng.integers(0, sources + 1, batch).astype(INT)
    state, (last,) = normal(rng, batch, width), outputs(("f", batch, width))
    library.call("LastRow", (features, count, state), (last,))
    for b in range(batch):
        np.testing.assert_array_equal(last[b], features[b, count[b] - 1] if count[b] else state[b])


def check_a_tree_from_root_to_report(library, rng):
    """Growth, selection, rows, acceptance and moves, each against ``reference_tree``."""
    batch, k, depth = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    size = k + (depth - 1) * k * k
    rows = int(rng.integers(1, size + 1)) + 1
    root = rng.integers(0, 50, batch).astype(INT)
    drafts = [(1, k), *[(k, k)] * (depth - 1)]
    levels = [
        (
            np.stack([rng.permutation(50)[:k] for _ in range(batch * parents)]).reshape(batch, parents, k),
            random_log_probs(rng, batch, parents, k),
        )
        for parents, _ in drafts
    ]
    broken = np.zeros(batch, bool)
    if rng.integers(3) == 0:
        at = levels[int(rng.integers(depth))][1]
        b = int(rng.integers(batch))
        at[b].flat[int(rng.integers(at[b].size))] = np.nan
        broken[b] = True
    flags = np.zeros(batch, bool)
    out = grown(batch, 1 + k, 1, k)
    library.call("GrowRoot", (root, levels[0][0].astype(INT), levels[0][1]), out)
    flags |= out[9]
    beams = [out[6]]
    lineages = [out[8]]
    for level, (tokens, log_probs) in enumerate(levels[1:]):
        more = grown(batch, 1 + k + (level + 1) * k * k, level + 2, k)
        library.call("GrowLevel", (*out[:4], out[5], out[6], out[8], tokens.astype(INT), log_probs), more)
        out = more
        flags |= out[9]
        beams.append(out[6])
        lineages.append(out[8])
    assert flags.tolist() == broken.tolist()
    start, active = rng.integers(0, 20, batch).astype(INT), rng.random(batch) < 0.8
    least = np.array([rng.choice([-np.inf, -2.2])], FLOAT)
    trash = int32(60)
    line, table = ("i", batch, rows), ("i", batch, depth + 1, rows)
    lists = ("i", batch, rows, 2 + max(1, depth))
    flag = ("b", batch, rows)
    laid = outputs(line, line, line, flag, flag, ("f", batch, rows), table, line, line, lists, table)
    library.call("LayTree", (*out[:4], least, start, active, trash), laid)
    tokens, parents, depths, there, valid, scores, ancestors, positions, slots, visible, paths = laid
    again = outputs(line, line, lists, table)
    library.call("TreeRows", (tokens, depths, valid, ancestors, start, trash), again)
    assert [x.tobytes() for x in again] == [x.tobytes() for x in laid[7:]]
    choices = rng.integers(0, 50, (batch, rows)).astype(INT)
    for b in range(batch):
        row = int(rng.integers(rows))  # the teacher follows the path to this row
        while row:
            choices[b, parents[b, row]] = tokens[b, row]
            row = parents[b, row]
    walked = outputs(("i", batch), ("i", batch, depth + 1), ("i", batch, depth + 1), ("i", batch))
    library.call("AcceptRows", (tokens, parents, depths, valid, ancestors, choices, active), walked)
    _, path, emitted, count = walked
    moves = outputs(("i", batch, depth + 1), ("i", batch, depth + 1))
    library.call("PathSlots", (path, count, start, trash), moves)
    faults, (report,) = rng.random((2, batch)) < 0.4, outputs(("i", batch, depth + 3))
    library.call("ReportRows", (count, faults[0], faults[1], start, emitted), (report,))
    for b in range(batch):
        clean = [
            (t[b] if i else t[b, 0], np.minimum(np.where(np.isnan(p[b]), -np.inf, p[b]), 0))
            for i, (t, p) in enumerate(levels)
        ]
        clean[0] = (clean[0][0], clean[0][1][0])
        pool, beam, lineage = reference_tree.grow(int(root[b]), clean)
        np.testing.assert_array_equal(out[0][b], [node.token for node in pool])
        np.testing.assert_array_equal(out[1][b], [node.score for node in pool])
        np.testing.assert_array_equal(out[2][b], [node.parent for node in pool])
        np.testing.assert_array_equal(out[3][b], [node.depth for node in pool])
        for level in range(depth):
            np.testing.assert_array_equal(beams[level][b], beam[level])
            np.testing.assert_array_equal(lineages[level][b].T, lineage[level])
        want = reference_tree.tensorize(pool, rows - 1, depth, least[0])
        for got, wanted in zip((tokens, parents, depths, there, ancestors, scores), want, strict=True):
            np.testing.assert_array_equal(got[b], wanted)
        usable = active[b] & ((there[b] & (start[b] > 0)) | (np.arange(rows) == 0))
        np.testing.assert_array_equal(valid[b], usable)
        np.testing.assert_array_equal(positions[b], start[b] + depths[b])
        np.testing.assert_array_equal(slots[b], np.where(usable, start[b] + np.arange(rows), 60))
        np.testing.assert_array_equal(paths[b], tokens[b][ancestors[b]])
        mask = reference_tree.tree_mask(start[b], parents[b], usable, 120)
        for r in range(rows):
            np.testing.assert_array_equal(np.sort(seen_slots(visible[b, r])), np.flatnonzero(~mask[r]))
        if not active[b]:
            assert not any(x[b].any() for x in walked)
        else:
            walk = reference_tree.accept(tokens[b], parents[b], usable, choices[b], depth)
            for got, wanted in zip(walked, walk, strict=True):
                np.testing.assert_array_equal(got[b], wanted)
        used = np.arange(depth + 1) < count[b]
        np.testing.assert_array_equal(moves[0][b], np.where(used, start[b] + path[b], 60))
        np.testing.assert_array_equal(moves[1][b], np.where(used, start[b] + np.arange(depth + 1), 60))
        code = 1 if faults[0, b] else 2 if faults[1, b] and start[b] else 0
        assert report[b].tolist() == [count[b], code, *emitted[b]]


def check_rows_of_levels_and_chunks(library, rng):
    batch, levels, k = (int(x) for x in rng.integers(1, 5, 3))
    start, active = rng.integers(0, 30, batch).astype(INT), rng.random(batch) < 0.7
    lineage = rng.integers(0, k, (batch, levels, k)).astype(INT)
    places, slots, visible = outputs(("i", batch, k), ("i", batch, k), ("i", batch, k, 2 + levels))
    library.call("LevelRows", (start, active, lineage, int32(99)), (places, slots, visible))
    for b in range(batch):
        assert places[b].tolist() == [start[b] + levels - 1] * k
        own = start[b] + (levels - 1) * k + np.arange(k)
        assert slots[b].tolist() == (own if active[b] else np.full(k, 99)).tolist()
        mask = reference_tree.level_mask(start[b], lineage[b].T.tolist(), 120)
        for r in range(k):
            np.testing.assert_array_equal(seen_slots(visible[b, r]), np.flatnonzero(~mask[r]))
    rows = int(rng.integers(1, 9))
    count, tokens = rng.integers(0, rows + 1, batch).astype(INT), np.zeros((batch, rows), INT)
    places, slots, visible = outputs(("i", batch, rows), ("i", batch, rows), ("i", batch, rows, 3))
    library.call("ChunkRows", (tokens, start, count, int32(99)), (places, slots, visible))
    for b in range(batch):
        real, order = np.arange(rows) < count[b], start[b] + np.arange(rows)
        assert places[b].tolist() == np.where(real, order, start[b]).tolist()
        assert slots[b].tolist() == np.where(real, order, 99).tolist()
        mask = reference_tree.causal_mask(start[b], count[b], rows, 120)
        for r in range(rows):
            np.testing.assert_array_equal(seen_slots(visible[b, r]), np.flatnonzero(~mask[r]))


def random_sampling(rng, size):
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.2, 1.0, 3.0])),
        top_k=int(rng.choice([0, 1, 4, size + 3])),
        top_p=float(rng.choice([1.0, 0.9, 0.3])),
        min_p=float(rng.choice([0.0, 0.05, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.7])),
        keep_crossing=bool(rng.integers(2)),
        min_length=int(rng.choice([0, 4, 20])),
        end_ids=rng.integers(0, size, min(int(rng.integers(9)), size // 2)).tolist(),
    )


def check_sampling(library, rng):
    """Bit for bit the choices of a full sort in whole numbers."""
    batch, rows, levels, size = *(int(x) for x in rng.integers(1, 4, 3)), int(rng.integers(1, 300))
    logits = normal(rng, batch, rows, size, scale=float(rng.choice([0.01, 2, 20])))
    if rng.integers(2):
        logits = np.round(logits)  # ties
    logits[rng.random(logits.shape) < 0.05] = -np.inf
    logits[:, :, int(rng.integers(size))] = 1.0
    seen, paths = rng.random((batch, size)) < 0.2, rng.integers(0, size, (batch, levels, rows)).astype(INT)
    positions, uniforms = rng.integers(0, 9, (batch, rows)).astype(INT), rng.random((batch, 10)).astype(FLOAT)
    uniforms[rng.random(uniforms.shape) < 0.1] = rng.choice([0.0, 1 - 2.0**-24])
    params = [random_sampling(rng, size) for _ in range(batch)]
    choices, fault = outputs(("i", batch, rows), ("b", batch))
    arguments = (logits, seen, paths, positions, params_tensor(params), uniforms, DECAY)
    library.call("SampleRows", arguments, (choices, fault))
    assert not fault.any()
    for b, r in np.ndindex(batch, rows):
        own = seen[b].copy()
        own[paths[b, :, r]] = True
        drawn = uniforms[b, positions[b, r] + 1]
        going_on = reference_sampling.without_ends(logits[b, r], int(positions[b, r]) + 1, params[b])
        assert choices[b, r] == reference_sampling.choose_fixed(going_on, own, params[b], drawn)[0]
    kind = int(rng.integers(3))
    bad, where = int(rng.integers(batch)), int(rng.integers(rows))
    if kind == 2:
        logits[bad, where] = -np.inf
    else:
        logits[bad, where, int(rng.integers(size))] = (np.nan, np.inf)[kind]
    library.call("SampleRows", arguments, (choices, fault))
    assert fault.tolist() == [b == bad for b in range(batch)]
    assert ((choices >= 0) & (choices < size)).all()


def check_memory_of_tokens(library, rng):
    batch, length, size = int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 40))
    tokens, count = rng.integers(0, size, (batch, length)).astype(INT), rng.integers(0, length + 1, batch)
    seen, (noted,) = rng.random((batch, size)) < 0.2, outputs(("i", 1))
    want = seen.copy()
    for b in range(batch):
        want[b, tokens[b, : count[b]]] = True
    library.call("MarkRows", (tokens, count.astype(INT), seen), (noted,))
    np.testing.assert_array_equal(seen, want)
    assert noted[0] == count.sum()


def check_malformed_steps_are_refused(library, rng):
    """As ``check_malformed_calls_are_refused``."""
    k, n, flag = int(rng.integers(2, 5)), int32(3), np.array([True])
    x, names = normal(rng, 1, k, 20), np.arange(20, dtype=INT)
    packed, norm, index = library.pack(normal(rng, 20, 20)), normal(rng, 20), np.arange(k, dtype=INT)[None]
    square = np.zeros((1, k, k), INT), random_log_probs(rng, 1, k, k)
    root = np.zeros((1, 1, k), INT), random_log_probs(rng, 1, 1, k)
    pool = grown(1, 1 + k, 1, k)
    library.call("GrowRoot", (n, *root), pool)
    line, table, valid = index * 0, np.zeros((1, 3, k), INT), np.ones((1, k), bool)
    lists = np.zeros((1, k, 4), INT)
    row = [line.copy() for _ in range(5)]
    calls = {
        "ChildRows": ([x, norm, packed, names, EPS], outputs(("i", 1, k, 2), ("f", 1, k, 2))),
        "PairRows": (
            [index, x, packed, int32(20), norm, norm, int32(1), EPS],
            [normal(rng, 1, k, 40), x.copy()],
        ),
        "PickRows": ([x, index], [x.copy()]),
        "LastRow": ([x, int32(2), x[:, 0].copy()], [x[:, 0].copy()]),
        "GrowRoot": ([n, *root], grown(1, 1 + k, 1, k)),
        "GrowLevel": ([*pool[:4], pool[5], pool[6], pool[8], *square], grown(1, 1 + k + k * k, 2, k)),
        "LayTree": (
            [*pool[:4], np.array([-9.0], FLOAT), n, flag, int32(30)],
            [
                *row[:3],
                valid.copy(),
                valid.copy(),
                x[:, :, 0].copy(),
                table.copy(),
                *row[3:],
                lists,
                table.copy(),
            ],
        ),
        "TreeRows": ([line, line, valid, table, n, int32(30)], [*row[:2], lists.copy(), table.copy()]),
        "LevelRows": ([n, flag, table, int32(30)], [*row[:2], np.zeros((1, k, 5), INT)]),
        "ChunkRows": ([line, n, int32(1), int32(30)], [*row[:2], np.zeros((1, k, 3), INT)]),
        "AcceptRows": (
            [line, line, line, valid, table, line, flag],
            outputs(("i", 1), ("i", 1, 3), ("i", 1, 3), ("i", 1)),
        ),
        "PathSlots": ([line, int32(1), n, int32(30)], row[:2]),
        "ReportRows": ([n, flag, flag, n, line], [np.zeros((1, k + 2), INT)]),
        "SampleRows": (
            [x, np.zeros((1, 20), bool), table, index, np.ones((1, 15), FLOAT), x[:, 0].copy(), DECAY],
            [line.copy(), flag.copy()],
        ),
        "MarkRows": ([index, int32(2), np.zeros((1, 20), bool)], outputs(("i", 1))),
    }
    spoil_one_argument(library, rng, calls)


CHECKS = (
    native_cases.CHECKS
    | native_code_cases.CHECKS
    | {n: check for n, check in globals().items() if n.startswith("check_")}
)


def main(path, rounds):
    library = Library(Path(path))
    library.set_threads(2)
    for name, check in CHECKS.items():
        for seed in range(rounds):
            check(library, np.random.default_rng(seed))
        print(name, "ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
