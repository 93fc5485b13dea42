"""Time the native CPU kernels against the hardware's floor, and the parts of a cycle against each other."""

import json

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

DESCRIPTION = """\
Time the native CPU kernels against the hardware's floor, and the parts of a cycle against each other.

The floor of a step is the longer of two times: reading its weights, K and V once at the rate of a bare read
loop, and doing its multiply-adds at the rate of one large matrix product, both measured in the same run. A
random teacher and a random head of SmolLM2-135M's shape stand for real ones: their values do not matter.
"""

EPILOG = """\
examples:
  python tools/benchmark_kernels.py
  python tools/benchmark_kernels.py --threads 1 --rounds 5
  python tools/benchmark_kernels.py --weights int8
  python tools/benchmark_kernels.py --contexts 256 16384 --layers 4
  python tools/benchmark_kernels.py --json | python -m json.tool

Leave the machine idle meanwhile: every piece of work is timed in turn, and its best round counts.
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--threads",
        metavar="N",
        type=command_line.count,
        help="CPU threads (default: every core the process may use)",
    )
    what.add_argument(
        "--rounds",
        metavar="N",
        type=command_line.count,
        default=20,
        help="times that each step is run; the best counts (default: 20)",
    )
    what.add_argument(
        "--contexts",
        metavar="N",
        type=command_line.count,
        nargs="+",
        default=[256, 1024, 4096, 8192],
        help="committed tokens of the steps of one row (default: 256 1024 4096 8192)",
    )
    what.add_argument(
        "--layers",
        metavar="N",
        type=command_line.count,
        default=30,
        help="blocks of the decoder (default: 30)",
    )
    what.add_argument(
        "--weights",
        choices=("float32", "int8", "int4"),
        default="float32",
        help="format of all matrices; the floor is that of its bytes and of a product in it (float32)",
    )
    what.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_common_options()
    args = parser.parse_args(argv)
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before the arguments have been checked.
    import mindspore as ms

    from ms_eagle.benchmark.kernels import Shape, lines, measure
    from ms_eagle.kernels.build import NativeUnavailable
    from ms_eagle.kernels.library import load
    from ms_eagle.system.progress import Progress

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    progress = Progress()
    try:
        with progress.steps("preparing kernels"):
            load(args.threads, notice=progress.note)
        with progress.steps("timing kernels"):
            report = measure(
                args.threads, Shape(layers=args.layers), args.rounds, args.contexts, args.weights
            )
    except NativeUnavailable as reason:
        raise UserError(f"native kernels are not available: {reason}") from reason
    print(json.dumps(report) if args.json else "\n".join(lines(report)))
    return 0


if __name__ == "__main__":
    command_line.run(main)
