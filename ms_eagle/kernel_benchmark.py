"""How close the native CPU kernels come to the hardware's floor, both measured in one run.

The floor of a step is the longer of two times: reading its weights, K and V once at the rate of a bare read
loop, and doing its multiply-adds at the rate of one large matrix product. A random decoder of SmolLM2-135M's
shape stands for the teacher: times do not depend on the values.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_eagle.kernels import native
from ms_eagle.kernels.library import ABSENT, Library
from ms_eagle.kv_cache import KVCache
from ms_eagle.layers import parameter
from ms_eagle.rope import RopeConfig

EPS = 1e-5
CHUNK = 128


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


class Decoder(nn.Cell):
    """A decoder of random weights; a call gives the argmax after each row, or only its hidden state."""

    def __init__(self, library: Library, shape: Shape, slots: int) -> None:
        super().__init__()
        operators, rng = native.Operators(library), np.random.default_rng(0)

        def weight(out: int, width: int) -> np.ndarray:
            return rng.standard_normal((out, width), np.float32) * width**-0.5

        ones, d = np.ones(shape.hidden, np.float32), shape.size
        self.cache = KVCache(shape.layers, 1, shape.kv_heads, slots, d, ms.float32)
        self.vocabulary = native.Vocabulary(operators, weight(shape.vocabulary, shape.hidden))
        self.blocks = nn.CellList(
            [
                nn.SequentialCell(
                    native.AttentionBlock(
                        operators,
                        weight((shape.heads + 2 * shape.kv_heads) * d, shape.hidden),
                        weight(shape.hidden, shape.heads * d),
                        EPS,
                        self.cache.shape,
                        norm=ones,
                    ),
                    native.MlpBlock(
                        operators,
                        weight(shape.inner, shape.hidden),
                        weight(shape.inner, shape.hidden),
                        weight(shape.hidden, shape.inner),
                        EPS,
                        norm=ones,
                    ),
                )
                for _ in range(shape.layers)
            ]
        )
        self.norm = native.RMSNorm(operators, ones, EPS)
        cos, sin = RopeConfig(d, 1e4, "default", {}, slots).tables(slots)
        self.cos, self.sin = parameter(cos, "cos", ms.float32), parameter(sin, "sin", ms.float32)

    def construct(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Rows at ``positions`` ``[1, N]``, written to the slots of the same numbers; ``-> [1, N]`` ids."""
        x = self.vocabulary.embed(tokens)
        for i, block in enumerate(self.blocks):
            keys, values = self.cache.keys[i], self.cache.values[i]
            x = block[0](x, x, self.cos, self.sin, positions, positions, visible, keys, values)
            x = block[1](x)
        return self.vocabulary.argmax(self.norm(x))[0]


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


def measure(library: Library, shape: Shape, rounds: int, contexts: list[int]) -> dict[str, object]:
    """Run everything; milliseconds, ratios to the floor, and what they were made of."""
    slots = max(*contexts, 1024) + CHUNK + 1
    decoder = Decoder(library, shape, slots)
    native.settle(library, decoder)
    weights = [p.asnumpy() for p in decoder.get_parameters() if p.ndim == 3]
    caches = [p.asnumpy() for p in (*decoder.cache.keys, *decoder.cache.values)]
    x = np.random.default_rng(1).standard_normal((1, 1024, 1024)).astype(np.float32)
    square, product = library.pack(x[0]), np.empty_like(x)
    scale = np.zeros(1, np.float32)
    bench, steps = Bench(), {}
    bench.work["stream"] = lambda: [library.stream(each) for each in weights]
    bench.work["product"] = lambda: library.call("LinearRows", (x, ABSENT, square, ABSENT, scale), (product,))
    for rows, context in [*((rows, 256) for rows in (1, 8, 17, 33)), *((1, c) for c in contexts if c != 256)]:
        steps[f"{rows} rows at {context}"] = (rows, context)
    for name, (rows, context) in steps.items():
        arguments = rows_at(context, rows)
        bench.work[name] = lambda arguments=arguments: decoder(*arguments).asnumpy()
    chunks = [rows_at(at, CHUNK) for at in range(0, 1024, CHUNK)]
    bench.work["prefill 1024"] = lambda: [decoder(*arguments) for arguments in chunks][-1].asnumpy()
    bench.run(rounds)
    streamed = sum(each.nbytes for each in weights)
    bandwidth = streamed / bench.seconds["stream"]
    speed = 2.0 * 1024**3 / bench.seconds["product"]
    report: dict[str, object] = {
        "threads": library.threads,
        "gigabytes_per_second": bandwidth / 1e9,
        "product_gflops": speed / 1e9,
        "steps": {},
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
    held = streamed + sum(each.nbytes for each in caches)
    report["memory"] = {"peak_bytes": peak, "weights_and_caches_bytes": held, "ratio": peak / held}
    return report


def lines(report: dict[str, object]) -> list[str]:
    """The report as a table."""
    steps = [
        f"{name:>18} {step['ms']:9.2f} {step['floor_ms']:9.2f} {step['ratio']:6.2f}"
        for name, step in report["steps"].items()
    ]
    prefill, memory = report["prefill"], report["memory"]
    return [
        f"{report['threads']} threads; floor: {report['gigabytes_per_second']:.1f} GB/s read, "
        f"{report['product_gflops']:.0f} GFLOP/s in a 1024-cubed product",
        f"{'step':>18} {'ms':>9} {'floor':>9} {'ratio':>6}",
        *steps,
        f"{'prefill 1024':>18} {prefill['ms']:9.2f}   {prefill['gflops']:.0f} GFLOP/s, "
        f"{100 * prefill['of_product']:.0f} % of the product's",
        f"peak memory {memory['peak_bytes'] / 1e6:.0f} MB, {memory['ratio']:.2f} of weights and caches",
    ]
