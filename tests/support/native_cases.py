"""Random calls of the native ops with what numpy expects of them; no MindSpore, so sanitizers can run it.

``native_step_cases`` adds the steps of a cycle and runs all of it as a program.
"""

from dataclasses import dataclass, field

import numpy as np

from ms_eagle.kernels.library import ABSENT, Library, NativeError

EPS = np.array([1e-5], np.float32)


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + EPS[0]) * weight


def silu(x):
    return x / (1 + np.exp(-x.astype(np.float64)))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def close(got, want, scale=1.0):
    np.testing.assert_allclose(got, want, atol=1e-4 * scale, rtol=1e-4)


def normal(rng, *shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def weight_of(rng, out, width):
    return normal(rng, out, width, scale=width**-0.5)


@dataclass(frozen=True)
class Sizes:
    """Shape of one random decoder layer and its caches."""

    batch: int
    rows: int
    hidden: int
    inner: int
    kv_heads: int
    group: int
    size: int
    slots: int
    biased: bool = False
    normed_heads: bool = False

    @property
    def heads(self):
        return self.kv_heads * self.group


def random_sizes(rng):
    return Sizes(
        batch=int(rng.integers(1, 3)),
        rows=int(rng.choice([1, 2, 5, 8, 13, 17, 49])),
        hidden=int(rng.integers(1, 150)),
        inner=int(rng.integers(1, 150)),
        kv_heads=int(rng.integers(1, 4)),
        group=int(rng.integers(1, 9)),
        size=2 * int(rng.choice([16, 17, 20, 24, 32, 40, 48, 64, 128])),
        slots=int(rng.choice([60, 131, 300, 700])),
        biased=bool(rng.integers(2)),
        normed_heads=bool(rng.integers(2)),
    )


@dataclass
class Layer:
    """Weights of one attention block, plain and packed."""

    library: Library
    sizes: Sizes
    rng: np.random.Generator
    packed: list = field(init=False)

    def __post_init__(self):
        s, rng = self.sizes, self.rng
        all_heads = s.heads + 2 * s.kv_heads
        self.norm = normal(rng, s.hidden)
        self.qkv = weight_of(rng, all_heads * s.size, s.hidden)
        self.out = weight_of(rng, s.hidden, s.heads * s.size)
        self.qkv_bias = normal(rng, len(self.qkv)) if s.biased else None
        self.out_bias = normal(rng, s.hidden) if s.biased else None
        self.q_norm = normal(rng, s.size) if s.normed_heads else None
        self.k_norm = normal(rng, s.size) if s.normed_heads else None
        angles = np.outer(np.arange(s.slots), 50.0 ** -np.linspace(0, 1, s.size // 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.packed = [
            self.norm,
            self.library.pack(self.qkv),
            *(ABSENT if x is None else x for x in (self.qkv_bias, self.q_norm, self.k_norm)),
            self.library.pack(self.out),
            ABSENT if self.out_bias is None else self.out_bias,
            self.cos,
            self.sin,
        ]

    @property
    def layout(self):
        return np.array([self.sizes.kv_heads, self.sizes.slots], np.int32)

    def caches(self):
        s = self.sizes
        shape = (s.batch, s.kv_heads, s.slots, s.size)
        return np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)

    def run(self, x, positions, slots, visible, keys, values):
        y = np.empty_like(x)
        inputs = (x, x, *self.packed, positions, slots, visible, keys, values, self.layout, EPS)
        self.library.call("AttentionBlock", inputs, (y,))
        return y

    def expected(self, x, positions, slots, visible, keys, values):
        """The same by numpy in float64; keys and values are written."""
        s = self.sizes
        qkv = rms_norm(x, self.norm) @ self.qkv.T.astype(np.float64)
        if s.biased:
            qkv = qkv + self.qkv_bias
        qkv = qkv.reshape(s.batch, x.shape[1], -1, s.size)
        q, k, v = np.split(qkv, [s.heads, s.heads + s.kv_heads], 2)
        if s.normed_heads:
            q, k = rms_norm(q, self.q_norm), rms_norm(k, self.k_norm)
        q, k = self.rotated(q, positions), self.rotated(k, positions)
        mixed = np.zeros((s.batch, x.shape[1], s.heads, s.size))
        for b in range(s.batch):
            keys[b][:, slots[b]] = k[b].transpose(1, 0, 2)
            values[b][:, slots[b]] = v[b].transpose(1, 0, 2)
            for r in range(x.shape[1]):
                seen = seen_slots(visible[b, r])
                for h in range(s.heads if len(seen) else 0):
                    scores = keys[b, h // s.group, seen].astype(np.float64) @ q[b, r, h] / np.sqrt(s.size)
                    mixed[b, r, h] = softmax(scores) @ values[b, h // s.group, seen]
        y = mixed.reshape(s.batch, x.shape[1], -1) @ self.out.T
        return x + y + (self.out_bias if s.biased else 0)

    def rotated(self, x, positions):
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        low, high = np.split(x, 2, -1)
        return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def seen_slots(entry):
    prefix, count = entry[:2]
    return np.concatenate((np.arange(prefix), entry[2 : 2 + count])).astype(int)


def visible_lists(lists, room):
    """``[B][N]`` lists of (prefix, further slots) as the ops take them."""
    out = np.zeros((len(lists), len(lists[0]), 2 + room), np.int32)
    for b, rows in enumerate(lists):
        for r, (prefix, more) in enumerate(rows):
            out[b, r, : 2 + len(more)] = prefix, len(more), *more
    return out


def random_tree(rng, rows):
    """Parents of a tree whose every row follows its parent, and each row's path from the root."""
    parents = [0] + [int(rng.integers(0, r)) for r in range(1, rows)]
    paths = [[0]]
    for r in range(1, rows):
        paths.append([*paths[parents[r]], r])
    return paths


def chain(layer, x, rows_per_call, keys, values):
    """Run the rows of ``x`` [B, T, E] as consecutive tokens, some at a time."""
    out, at = [], 0
    for rows in rows_per_call:
        positions = np.tile(np.arange(at, at + rows, dtype=np.int32), (len(x), 1))
        visible = visible_lists([[(at + r + 1, ()) for r in range(rows)]] * len(x), 1)
        out.append(layer.run(x[:, at : at + rows].copy(), positions, positions, visible, keys, values))
        at += rows
    return np.concatenate(out, 1)


# ---- checks -----------------------------------------------------------------------------------------------


def check_linear(library, rng):
    batch, rows = int(rng.integers(1, 4)), int(rng.integers(1, 129))
    width, out = int(rng.integers(1, 300)), int(rng.integers(1, 300))
    biased, normed = rng.integers(2, size=2)
    weight, bias, norm = weight_of(rng, out, width), normal(rng, out), normal(rng, width)
    x = normal(rng, batch, rows, width)
    packed = library.pack(weight)
    y = np.empty((batch, rows, out), np.float32)
    # A vector of one entry cannot be told from an absent one where one entry is right: both are the vector.
    inputs = (x, norm if normed else ABSENT, packed, bias if biased else ABSENT, EPS)
    library.call("LinearRows", inputs, (y,))
    want = (rms_norm(x, norm) if normed else x) @ weight.T.astype(np.float64)
    if width > 1 and out > 1:
        close(y, want + (bias if biased else 0))
        one = np.empty((1, 1, out), np.float32)
        b, r = int(rng.integers(batch)), int(rng.integers(rows))
        library.call("LinearRows", (x[b : b + 1, r : r + 1].copy(), *inputs[1:]), (one,))
        assert one.tobytes() == y[b, r].tobytes(), "a row alone differs from the same row among others"
        tokens = rng.integers(0, out, (2, 3)).astype(np.int32)
        rows_of = np.empty((2, 3, width), np.float32)
        library.call("EmbedRows", (tokens, packed, np.array([out], np.int32)), (rows_of,))
        np.testing.assert_array_equal(rows_of, weight[tokens])
        best, faulty = np.empty((batch, rows), np.int32), np.ones(batch, bool)
        library.call("ArgmaxRows", (x, inputs[1], packed, np.array([out], np.int32), EPS), (best, faulty))
        library.call("LinearRows", (x, inputs[1], packed, ABSENT, EPS), (y,))
        np.testing.assert_array_equal(best, y.argmax(2))
        assert not faulty.any()


def check_argmax_ties_and_faults(library, rng):
    width, out, rows = 8, int(rng.integers(40, 900)), 6
    weight = rng.integers(-1, 2, (out, width)).astype(np.float32)
    x = rng.integers(-1, 2, (1, rows, width)).astype(np.float32)
    x[0, 1, 0], x[0, 2, 1] = np.nan, np.inf
    weight[3] = 1.0
    x = np.ascontiguousarray(x.reshape(3, 2, width))
    best, faulty = np.empty((3, 2), np.int32), np.zeros(3, bool)
    library.call(
        "ArgmaxRows", (x, ABSENT, library.pack(weight), np.array([out], np.int32), EPS), (best, faulty)
    )
    assert faulty.tolist() == [True, True, False]
    assert ((best >= 0) & (best < out)).all()
    best, logits = best.reshape(rows), x.reshape(rows, width)[3:] @ weight.T
    np.testing.assert_array_equal(best[3:], logits.argmax(1))  # small whole numbers: exact, many ties


def check_mlp(library, rng):
    batch, rows = int(rng.integers(1, 3)), int(rng.choice([1, 3, 8, 17, 50, 128]))
    hidden, inner = int(rng.integers(2, 200)), int(rng.integers(2, 200))
    gate, up = weight_of(rng, inner, hidden), weight_of(rng, inner, hidden)
    down, norm = weight_of(rng, hidden, inner), normal(rng, hidden)
    biased = bool(rng.integers(2))
    bias, down_bias = normal(rng, 2 * inner), normal(rng, hidden)
    x = normal(rng, batch, rows, hidden, scale=3.0)
    inputs = [norm, library.pack(gate, up), bias, library.pack(down), down_bias, EPS]
    if not biased:
        inputs[2] = inputs[4] = ABSENT
        bias, down_bias = 0 * bias, 0 * down_bias
    y = np.empty_like(x)
    library.call("MlpBlock", (x, *inputs), (y,))
    n = rms_norm(x, norm)
    between = silu(n @ gate.T + bias[:inner]) * (n @ up.T + bias[inner:])
    close(y, x + between @ down.T + down_bias, 4.0)
    one = np.empty((1, 1, hidden), np.float32)
    library.call("MlpBlock", (x[:1, -1:].copy(), *inputs), (one,))
    assert one.tobytes() == y[0, -1].tobytes()


def check_norm(library, rng):
    x = normal(rng, 2, int(rng.integers(1, 40)), int(rng.integers(1, 700)), scale=5.0)
    weight, y = normal(rng, x.shape[2]), np.empty_like(x)
    library.call("RmsNormRows", (x, weight, EPS), (y,))
    close(y, rms_norm(x, weight))


def check_attention_against_numpy(library, rng):
    """Committed context, then a tree at shuffled slots; unwritten slots hold NaN, which must not be read."""
    s = random_sizes(rng)
    layer = Layer(library, s, rng)
    keys, values = layer.caches()
    room = s.slots - s.rows - 2
    context = int(rng.choice([0, 1, room, rng.integers(0, room + 1)]))
    tokens = normal(rng, s.batch, s.slots, s.hidden)
    if context:
        chain(layer, tokens, [context], keys, values)
    paths = random_tree(rng, s.rows)
    free = context + rng.permutation(s.slots - 1 - context)[: s.rows].astype(np.int32)
    slots = np.tile(free, (s.batch, 1)).astype(np.int32)
    positions = np.tile(np.int32([context + len(p) - 1 for p in paths]), (s.batch, 1))
    lists = [[(context, [int(free[i]) for i in path]) for path in paths]] * s.batch
    visible = visible_lists(lists, max(map(len, paths)))
    want_keys, want_values = keys.copy(), values.copy()
    x = tokens[:, context : context + s.rows].copy()
    y = layer.run(x, positions, slots, visible, keys, values)
    want = layer.expected(x, positions, slots, visible, want_keys, want_values)
    close(y, want)
    close(keys, want_keys)
    close(values, want_values)


def check_tree_chunk_and_single_rows_agree_bitwise(library, rng):
    """The same token after the same tokens, however it got there: identical bits out and in the cache."""
    s = random_sizes(rng)
    layer = Layer(library, s, rng)
    total = min(s.slots - s.rows - 2, 290)
    x = normal(rng, s.batch, total, s.hidden)
    single_keys, single_values = layer.caches()
    alone = chain(layer, x, [1] * total, single_keys, single_values)
    chunk_keys, chunk_values = layer.caches()
    first = int(rng.integers(1, total))
    chunked = chain(layer, x, [first, total - first], chunk_keys, chunk_values)
    assert alone.tobytes() == chunked.tobytes()
    assert single_keys.tobytes() == chunk_keys.tobytes()
    assert single_values.tobytes() == chunk_values.tobytes()
    # A tree after `context` tokens whose one path holds the next tokens, the other rows anything.
    length = int(rng.integers(1, min(s.rows, total) + 1))
    context = int(rng.integers(0, total - length + 1))
    keys, values = layer.caches()
    keys[:, :, :context], values[:, :, :context] = single_keys[:, :, :context], single_values[:, :, :context]
    members = np.sort(rng.permutation(s.rows)[:length])
    tree = normal(rng, s.batch, s.rows, s.hidden)
    tree[:, members] = x[:, context : context + length]
    depth, paths = 0, []
    for r in range(s.rows):
        paths.append([*members[:depth], r])
        depth += r in members
    free = context + rng.permutation(s.slots - 1 - context)[: s.rows].astype(np.int32)
    lists = [[(context, [int(free[i]) for i in path]) for path in paths]] * s.batch
    positions = np.tile(np.int32([context + len(p) - 1 for p in paths]), (s.batch, 1))
    slots = np.tile(free, (s.batch, 1)).astype(np.int32)
    y = layer.run(tree, positions, slots, visible_lists(lists, length + 1), keys, values)
    assert y[:, members].tobytes() == alone[:, context : context + length].tobytes()
    # Committing the path gives the cache of the single steps.
    room = length + 2
    trash = s.slots - 1
    keys[:, :, trash], values[:, :, trash] = 0, 0
    source, target = np.full((s.batch, room), trash, np.int32), np.full((s.batch, room), trash, np.int32)
    source[:, :length], target[:, :length] = free[members], context + np.arange(length)
    moved = np.empty(1, np.int32)
    as_rows = values.reshape(-1, s.size)  # either form of a cache will do
    library.call("CommitRows", (source, target, layer.layout, keys, as_rows), (moved,))
    assert moved[0] == (source != target).sum()
    end = context + length
    assert keys[:, :, :end].tobytes() == single_keys[:, :, :end].tobytes()
    assert values[:, :, :end].tobytes() == single_values[:, :, :end].tobytes()


def check_threads_do_not_change_bits(library, rng):
    s = random_sizes(rng)
    layer = Layer(library, s, rng)
    x = normal(rng, s.batch, s.slots - 1, s.hidden)
    before, results = library.threads, []
    for threads in (1, 2, 5):
        library.set_threads(threads)
        keys, values = layer.caches()
        results.append(chain(layer, x, [s.slots - 2, 1], keys, values).tobytes())
    library.set_threads(before)
    assert results[0] == results[1] == results[2]


def check_masks_become_lists(library, rng):
    batch, rows, slots = int(rng.integers(1, 3)), int(rng.integers(1, 9)), int(rng.integers(1, 200))
    mask = rng.random((batch, 1, rows, slots)) < rng.choice([0.0, 0.05, 0.5, 0.95, 1.0])
    visible = np.empty((batch, rows, 2 + slots), np.int32)
    library.call("VisibleRows", (mask,), (visible,))
    for b in range(batch):
        for r in range(rows):
            np.testing.assert_array_equal(seen_slots(visible[b, r]), np.flatnonzero(~mask[b, 0, r]))
            assert (visible[b, r] >= 0).all()


def check_attend_alone(library, rng):
    batch, rows, kv_heads, group = (int(n) for n in rng.integers(1, 5, 4))
    size, slots = int(rng.integers(1, 257)), int(rng.integers(1, 400))
    q = normal(rng, batch, kv_heads * group, rows, size)
    keys, values = normal(rng, batch, kv_heads, slots, size), normal(rng, batch, kv_heads, slots, size)
    mask = rng.random((batch, 1, rows, slots)) < 0.5
    visible = np.empty((batch, rows, 2 + slots), np.int32)
    library.call("VisibleRows", (mask,), (visible,))
    keys[:, :, mask.all((0, 1, 2))] = np.nan
    y = np.empty_like(q)
    library.call("AttendRows", (q, keys, values, visible), (y,))
    for b in range(batch):
        for h in range(kv_heads * group):
            for r in range(rows):
                seen = ~mask[b, 0, r]
                want = np.zeros(size)
                if seen.any():
                    scores = keys[b, h // group, seen].astype(np.float64) @ q[b, h, r] / np.sqrt(size)
                    want = softmax(scores) @ values[b, h // group, seen]
                close(y[b, h, r], want)


def check_top(library, rng):
    rows, width = int(rng.integers(1, 9)), int(rng.integers(1, 3000))
    k = int(rng.integers(1, min(width, 20) + 1))
    x = rng.integers(0, max(2, width // 4), (rows, width)).astype(np.float32)  # many ties
    x[rng.random(x.shape) < 0.01] = -np.inf
    if rng.integers(2):
        x[rng.random(x.shape) < 0.05] = np.nan
    values, columns = np.empty((rows, k), np.float32), np.empty((rows, k), np.int32)
    library.call("TopRows", (x,), (values, columns))
    clean = np.where(np.isnan(x), -np.inf, x)
    want = np.argsort(-clean, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(columns, want)
    np.testing.assert_array_equal(values, np.take_along_axis(clean, want, 1))


def check_malformed_calls_are_refused(library, rng):
    """Change one thing about a good call: it is refused or harmless, and never crashes."""
    s = Sizes(1, int(rng.integers(1, 5)), 20, 12, 2, 2, 32, 24)
    layer = Layer(library, s, rng)
    keys, values = (np.zeros((1, 2, 24, 32), np.float32) for _ in range(2))
    x = normal(rng, 1, s.rows, 20)
    index = np.tile(np.arange(s.rows, dtype=np.int32), (1, 1))
    visible = visible_lists([[(r + 1, ()) for r in range(s.rows)]], 3)
    columns = np.array([20], np.int32)
    calls = {
        "AttentionBlock": (
            [x, x, *layer.packed, index, index, visible, keys, values, layer.layout, EPS],
            [x.copy()],
        ),
        "MlpBlock": (
            [
                x,
                layer.norm,
                library.pack(*normal(rng, 2, 12, 20)),
                ABSENT,
                library.pack(normal(rng, 20, 12)),
                ABSENT,
                EPS,
            ],
            [x.copy()],
        ),
        "LinearRows": ([x, layer.norm, library.pack(normal(rng, 20, 20)), ABSENT, EPS], [x.copy()]),
        "ArgmaxRows": (
            [x, layer.norm, library.pack(normal(rng, 20, 20)), columns, EPS],
            [index.copy(), np.zeros(1, bool)],
        ),
        "EmbedRows": ([index, library.pack(normal(rng, 20, 20)), columns], [x.copy()]),
        "RmsNormRows": ([x, layer.norm, EPS], [x.copy()]),
        "VisibleRows": ([np.ones((1, 1, s.rows, 24), bool)], [visible.copy()]),
        "AttendRows": (
            [normal(rng, 1, 4, s.rows, 32), keys, values, visible],
            [np.empty((1, 4, s.rows, 32), np.float32)],
        ),
        "CommitRows": ([index, index, layer.layout, keys, values], [np.zeros(1, np.int32)]),
        "TopRows": ([x[0]], [np.empty((s.rows, 3), np.float32), np.empty((s.rows, 3), np.int32)]),
    }
    spoil_one_argument(library, rng, calls)


def spoil_one_argument(library, rng, calls):
    """Call each op as it should be, then with one argument changed; ``calls``: op to (inputs, outputs)."""
    refusals = []
    for op, (inputs, outputs) in calls.items():
        library.call(op, inputs, outputs)  # good as it is
        arrays = [*inputs, *outputs]
        at = int(rng.integers(len(arrays)))
        old = arrays[at]
        kind = int(rng.integers(5))
        if kind == 0:  # another dtype
            arrays[at] = old.astype(np.float16 if old.dtype != np.float16 else np.float32)
        elif kind == 1:  # one dimension longer or shorter
            shape = list(old.shape)
            axis = int(rng.integers(len(shape)))
            shape[axis] = max(0, shape[axis] + int(rng.choice([-1, 1, 7])))
            arrays[at] = np.resize(old, shape) if 0 not in shape else np.zeros(shape, old.dtype)
        elif kind == 2:  # another rank
            arrays[at] = old[None] if rng.integers(2) else old.reshape(-1)
        elif kind == 3:  # a tensor missing or added
            arrays = arrays[:at] + arrays[at + 1 :] if rng.integers(2) else [*arrays, EPS]
        elif old.dtype == np.int32:  # a wild index
            arrays[at] = old.copy()
            arrays[at].flat[int(rng.integers(old.size))] = rng.choice([-1, -(2**31), 2**31 - 1, 1000])
        try:
            library.call(op, arrays, [])
        except NativeError as error:
            refusals.append((op, str(error)))
    assert all(text.startswith(op) for op, text in refusals)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
