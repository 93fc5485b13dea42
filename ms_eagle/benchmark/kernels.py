"""How close the native CPU kernels come to the hardware's floor, and what a cycle spends beside its forwards.

The floor of a step is the longer of two times: reading its weights, K and V once at the rate of a bare read
loop, and doing its multiply-adds at the rate of one large matrix product, both measured in the same run. A
random teacher and a random head of SmolLM2-135M's shape stand for real ones: their values do not matter.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from mindspore import Tensor, nn

from ms_eagle.backends.native import NativeBackend
from ms_eagle.checkpoints.random_weights import RandomCheckpoint
from ms_eagle.cycle.cycle import TreeCycle
from ms_eagle.cycle.graphs import Graphs
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.drafters.base import Drafter
from ms_eagle.drafters.eagle3.blueprint import HeadBlueprint
from ms_eagle.drafters.eagle3.random_weights import random_head
from ms_eagle.drafters.eagle3.taps import default_taps
from ms_eagle.engine.controls import Controls
from ms_eagle.kernels import native
from ms_eagle.kernels.library import ABSENT, Library
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.quantisation import Asked, stored_as
from ms_eagle.models.teacher import Teacher
from ms_eagle.models.weight import Weight
from ms_eagle.pages.columns import aligned
from ms_eagle.tree.shape import TreeShape

CHUNK, CONTEXT = 128, 256
TREE = TreeShape(budget=16, depth=6, branch=8)

STEP_TARGETS = {f"1 rows at {CONTEXT}": 1.35, f"{TREE.rows} rows at {CONTEXT}": 1.4}
"""Times of a step over its floor, at most."""

DRAFTER_TARGET, REST_TARGET, PREFILL_TARGET, MEMORY_TARGET = 0.5, 0.05, 0.7, 1.6
"""The drafter's part of a cycle over a step of one row, at most; the share of a cycle that is neither drafter
nor verification, at most; prefill's share of the product's speed, at least; peak memory over weights and
caches, at most."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; the defaults are SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    inner: int = 1536
    heads: int = 9
    kv_heads: int = 3
    size: int = 64
    vocabulary: int = 49152

    @property
    def weights(self) -> int:
        """Entries of all matrices, the tied vocabulary once."""
        block = (2 * self.heads + 2 * self.kv_heads) * self.size * self.hidden + 3 * self.hidden * self.inner
        return self.layers * block + self.vocabulary * self.hidden

    def cache_bytes(self, context: int) -> int:
        """Bytes of K and V that one row reads."""
        return 8 * self.layers * self.kv_heads * self.size * context

    def flops(self, rows: int, context: int) -> float:
        """Floating-point operations of a step over the weights and, for each row, its context."""
        return rows * (2.0 * self.weights + 4.0 * self.layers * self.heads * self.size * context)

    @property
    def taps(self) -> tuple[int, ...]:
        """Blocks whose inputs the drafter is fed: the usual ones where there are enough."""
        return default_taps(self.layers) or tuple(range(min(3, self.layers)))

    def decoder(self) -> DecoderConfig:
        """As a model's configuration."""
        return DecoderConfig.from_hf(
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.inner,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.size,
                "rms_norm_eps": 1e-5,
                "rope_theta": 1e4,
                "tie_word_embeddings": True,
            }
        )


class Step(nn.Cell):
    """The teacher's forward and its greedy choice after each row."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def construct(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Rows at ``positions`` ``[1, N]``, written to the slots of the same numbers; ``-> [1, N]`` ids."""
        hidden, _ = self.teacher(tokens, positions, positions, visible)
        return self.teacher.greedy(hidden)[0]


class Draft(nn.Cell):
    """All that the drafter does in a cycle: a tree, and the accepted tokens."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def construct(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        taps: Tensor,
        tokens: Tensor,
        count: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See ``Drafter``; the pool's scores and the new state."""
        pool, _ = self.drafter.propose(root, n, active, state)
        return pool[1], self.drafter.take(taps, tokens, n, count, state)


class Rest(nn.Cell):
    """A cycle without its forwards: tensorize, accept, commit, report."""

    def __init__(self, cycle: TreeCycle) -> None:
        super().__init__()
        self.tensorize, self.steps, self.reorder = cycle.tensorize, cycle.steps, cycle.reorder

    def construct(
        self,
        tokens: Tensor,
        scores: Tensor,
        parents: Tensor,
        depths: Tensor,
        n: Tensor,
        active: Tensor,
        choices: Tensor,
        taps: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Lay out a pool, follow ``choices``; see ``TreeCycle``. The report, and the taps to go on with."""
        tree, _, _ = self.tensorize(tokens, scores, parents, depths, n, active)
        _, path, emitted, count = self.steps.accept(tree, choices, active)
        self.reorder(path, count, n)
        fault = n < 0
        return self.steps.report(count, fault, fault, n, emitted), self.steps.pick(taps, path)


class Nothing(nn.Cell):
    """A graph that does nothing: what it costs to call one."""

    def construct(self, x: Tensor) -> Tensor:
        """Next to nothing."""
        return x + 1


class Speculation:
    """A teacher and a drafter over random weights, and the calls that a cycle is made of."""

    def __init__(self, threads: int | None, shape: Shape, slots: int, weights: Asked) -> None:
        backend, decoder = NativeBackend(threads, TREE.depth), shape.decoder()
        self.library: Library = backend.operators.library
        sizes = Sizes(1, CHUNK, slots - TREE.rows - 1, (TREE,))
        places = {"slots": slots, "positions": slots}
        drawn = RandomCheckpoint(decoder.tensor_shapes())
        self.teacher = Teacher(
            decoder,
            lambda name: stored_as(drawn.weight(name), weights),
            backend,
            taps=shape.taps,
            batch=1,
            **places,
        )
        head = HeadBlueprint(replace(random_head(decoder, shape.taps), weights=weights))
        self.drafter = head.build(self.teacher, backend, TREE, **places)
        self.graphs = Graphs(
            self.teacher,
            self.drafter,
            sizes,
            name="random",
            kernels=backend.name,
            dtype="float32",
            reorder=backend.reorder,
        )
        self.step, self._draft, self._nothing = Step(self.teacher), Draft(self.drafter), Nothing()
        self._rest = Rest(self.graphs.cycle(TREE, False))
        self._state = self.graphs.empty()
        self._controls = Controls(1, self.graphs.facts.positions).tensors()
        native.settle(self.library, self.teacher, self.drafter).join()

    def launch(self) -> np.ndarray:
        """Call a graph, and read what it gives."""
        return self._nothing(_int32(CONTEXT)).asnumpy()

    def draft(self) -> np.ndarray:
        """The drafter's part of a cycle."""
        levels = TREE.depth + 1
        taps = Tensor(
            np.ones((1, levels, len(self.teacher.taps) * self.drafter.head.hidden_size), np.float32)
        )
        tokens, active = Tensor(np.ones((1, levels), np.int32)), Tensor(np.array([True]))
        call = (_int32(1), _int32(CONTEXT), active, taps, tokens, _int32(levels), self._state)
        return self._draft(*call)[1].asnumpy()

    def rest(self) -> np.ndarray:
        """A cycle without its forwards, in which a whole path is accepted and moved."""
        taps = Tensor(
            np.ones((1, TREE.rows, len(self.teacher.taps) * self.drafter.head.hidden_size), np.float32)
        )
        choices = Tensor(np.ones((1, TREE.rows), np.int32))
        call = (_int32(CONTEXT), Tensor(np.array([True])), choices, taps)
        return self._rest(*pool_of(TREE), *call)[0].asnumpy()

    def cycle(self) -> np.ndarray:
        """A whole cycle as an engine runs it, but for the text."""
        call = (_int32(1), _int32(CONTEXT), Tensor(np.array([True])), *self._controls, self._state)
        return self.graphs.cycle(TREE, False)(*call)[0].asnumpy()


def _int32(value: int) -> Tensor:
    return Tensor(np.array([value], np.int32))


def pool_of(shape: TreeShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A pool (``tree.Pool``) in which every node's second child, token 1, is its best.

    A teacher that always says 1 accepts a path of the full depth, whose rows are not in place.
    """
    k, tokens, scores, parents, depths = shape.branch, [0], [0.0], [0], [0]
    beams = [0]
    for depth in range(1, shape.depth + 1):
        base = len(tokens)
        for beam, parent in enumerate(beams):
            for child in range(k):
                tokens.append(child)
                best = child == min(1, k - 1) and beam == min(1, len(beams) - 1)
                scores.append(scores[parent] - (0.01 if best else 0.1 + 0.01 * child))
                parents.append(parent)
                depths.append(depth)
        # The children of the best beam are forwarded next.
        first = base + min(1, len(beams) - 1) * k
        beams = list(range(first, first + k))
    columns = ((tokens, np.int32), (scores, np.float32), (parents, np.int32), (depths, np.int32))
    return tuple(Tensor(np.array([column], dtype)) for column, dtype in columns)


def rows_at(context: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of a call whose rows follow ``context`` committed tokens, one after another."""
    positions = np.arange(context, context + rows, dtype=np.int32)[None]
    visible = np.zeros((1, rows, 3), np.int32)
    visible[0, :, 0] = positions + 1
    return Tensor(np.ones((1, rows), np.int32)), Tensor(positions), Tensor(visible)


class Bench:
    """Named pieces of work, timed in turn so that all meet the same disturbances; the best time counts."""

    def __init__(self) -> None:
        self.work: dict[str, Callable[[], object]] = {}
        self.seconds: dict[str, float] = {}

    def run(self, rounds: int) -> None:
        """Time every piece ``rounds`` times after one call to warm up."""
        for name, work in self.work.items():
            work()
            self.seconds[name] = float("inf")
        for _ in range(rounds):
            for name, work in self.work.items():
                start = time.perf_counter()
                work()
                self.seconds[name] = min(self.seconds[name], time.perf_counter() - start)


def measure(
    threads: int | None, shape: Shape, rounds: int, contexts: list[int], weights: Asked = "float32"
) -> dict[str, object]:
    """Run everything; milliseconds, ratios, and what they were made of.

    Raises:
        NativeUnavailable: the kernels cannot be had here.
    """
    run = Speculation(threads, shape, max(*contexts, 1024) + CHUNK + 1, weights)
    library = run.library
    matrices = [p.asnumpy() for p in run.teacher.get_parameters() if p.ndim == 3]
    x = np.random.default_rng(1).standard_normal((1, 1024, 1024)).astype(np.float32)
    square, product = native.packed(library, stored_as(Weight.of(x[0]), weights)), np.empty_like(x)
    scale = np.zeros(1, np.float32)
    bench, steps = Bench(), {}
    bench.work["stream"] = lambda: [library.stream(each) for each in matrices]
    bench.work["product"] = lambda: library.call("LinearRows", (x, ABSENT, square, ABSENT, scale), (product,))
    sizes = [
        *((rows, CONTEXT) for rows in (1, 8, TREE.rows, 33)),
        *((1, c) for c in contexts if c != CONTEXT),
    ]
    for rows, context in sizes:
        steps[f"{rows} rows at {context}"] = (rows, context)
    for name, (rows, context) in steps.items():
        arguments = rows_at(context, rows)
        bench.work[name] = lambda arguments=arguments: run.step(*arguments).asnumpy()
    bench.work |= {"launch": run.launch, "drafter": run.draft, "rest": run.rest, "cycle": run.cycle}
    chunks = [rows_at(at, CHUNK) for at in range(0, 1024, CHUNK)]
    bench.work["prefill 1024"] = lambda: [run.step(*arguments) for arguments in chunks][-1].asnumpy()
    bench.run(rounds)
    streamed = sum(each.nbytes for each in matrices)
    bandwidth = streamed / bench.seconds["stream"]
    speed = 2.0 * 1024**3 / bench.seconds["product"]
    report: dict[str, object] = {
        "threads": library.threads,
        "weights": weights,
        "gigabytes_per_second": bandwidth / 1e9,
        "product_gflops": speed / 1e9,
        "steps": {},
        "cycle": _cycle(bench.seconds),
    }
    for name, (rows, context) in steps.items():
        read = (streamed + shape.cache_bytes(context)) / bandwidth
        floor = max(read, shape.flops(rows, context) / speed)
        seconds = bench.seconds[name]
        report["steps"][name] = {"ms": 1e3 * seconds, "floor_ms": 1e3 * floor, "ratio": seconds / floor}
    work = sum(shape.flops(CHUNK, at + CHUNK / 2) for at in range(0, 1024, CHUNK))
    reached = work / bench.seconds["prefill 1024"]
    report["prefill"] = {
        "ms": 1e3 * bench.seconds["prefill 1024"],
        "gflops": reached / 1e9,
        "of_product": reached / speed,
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parameters = {id(p): p for model in (run.teacher, run.drafter) for p in model.get_parameters()}
    held = sum(each.asnumpy().nbytes for each in parameters.values())
    report["memory"] = {"peak_bytes": peak, "weights_and_caches_bytes": held, "ratio": peak / held}
    return report


def _cycle(seconds: dict[str, float]) -> dict[str, float]:
    """A cycle and its parts, each timed as a graph of its own; only the rest keeps its call, the cycle's own.

    Parts alone find their weights where the last round left them; in a cycle they push each other out of the
    processor's caches. That difference is ``cold_ms``, and belongs to no part.
    """
    launch = seconds["launch"]
    drafter = seconds["drafter"] - launch
    verify = seconds[f"{TREE.rows} rows at {CONTEXT}"] - launch
    rest = seconds["rest"]
    return {
        "ms": 1e3 * seconds["cycle"],
        "drafter_ms": 1e3 * drafter,
        "verify_ms": 1e3 * verify,
        "rest_ms": 1e3 * rest,
        "cold_ms": 1e3 * (seconds["cycle"] - drafter - verify - rest),
        "drafter_of_one_row": drafter / seconds[f"1 rows at {CONTEXT}"],
        "rest_of_cycle": rest / seconds["cycle"],
    }


def lines(report: dict[str, object]) -> list[str]:
    """The report as a table."""
    targets = {name: f"target: at most {most:.2f}" for name, most in STEP_TARGETS.items()}
    prefill, memory, cycle = report["prefill"], report["memory"], report["cycle"]
    steps = [
        (name, f"{step['ms']:.2f}", f"{step['floor_ms']:.2f}", f"{step['ratio']:.2f}", targets.get(name, ""))
        for name, step in report["steps"].items()
    ]
    speed = f"{prefill['gflops']:.0f} GFLOP/s, {100 * prefill['of_product']:.0f} % of the product's"
    parts = (
        f"of {TREE.rows} rows, D={TREE.depth}, k={TREE.branch}: drafter {cycle['drafter_ms']:.2f}, verify "
        f"{cycle['verify_ms']:.2f}, all else {cycle['rest_ms']:.2f}; {cycle['cold_ms']:+.2f} beside their sum"
    )
    one_row, rest = f"{cycle['drafter_of_one_row']:.2f}", f"{100 * cycle['rest_of_cycle']:.1f}"
    others = [
        ("prefill 1024", f"{prefill['ms']:.2f}", f"{speed}   target: at least {100 * PREFILL_TARGET:.0f} %"),
        ("cycle", f"{cycle['ms']:.2f}", parts),
        ("drafter", one_row, f"of a step of one row   target: at most {DRAFTER_TARGET}"),
        ("all else", rest, f"% of the cycle   target: at most {100 * REST_TARGET:.0f} %"),
    ]
    return [
        f"{report['threads']} threads, {report['weights']}; floor: {report['gigabytes_per_second']:.1f} GB/s "
        f"read, {report['product_gflops']:.0f} GFLOP/s in a 1024-cubed product",
        *aligned([("step", "ms", "floor", "ratio", ""), *steps, *others]),
        f"peak memory {memory['peak_bytes'] / 1e6:.0f} MB, {memory['ratio']:.2f} of weights and caches   "
        f"target: at most {MEMORY_TARGET}",
    ]
