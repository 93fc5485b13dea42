"""Check random engines against their teachers, for as long as you like."""

import sys
import time
from argparse import ArgumentTypeError, Namespace

from ms_eagle.cli import command_line

DESCRIPTION = """\
Check that speculation changes no token: random small teachers, drafters, trees, batches, capacities, commits
and requests that arrive, follow each other and are cancelled at random moments; every answer is compared with
that of the teacher alone.

The first failure is printed with the command that repeats it, and ends the run with exit status 1.
"""

EPILOG = """\
examples:
  python tools/fuzz.py --minutes 60
  python tools/fuzz.py --seed 7 --first 123 --engines 1    # one case again
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    args = parse(argv)
    command_line.begin(args.verbose)
    from ms_eagle.backends import choosing
    from ms_eagle.diagnosis import fuzz
    from ms_eagle.system.progress import Progress

    progress = Progress()
    seed = time.time_ns() % (1 << 32) if args.seed is None else args.seed
    name = choosing.start("CPU", None, None)
    dtype = choosing.dtype("float32", name)
    backends = {}

    def backend(depth: int):
        if depth not in backends:
            with progress.steps("preparing kernels"):
                backends[depth] = choosing.backend(
                    args.kernels, name, dtype, threads=None, strays=depth, notice=progress.note
                )
        return backends[depth]

    print(f"seed {seed}", file=sys.stderr)
    seconds = float("inf") if args.minutes is None else args.minutes * 60
    if args.minutes is None and args.engines is None:
        seconds = 60.0
    tally = fuzz.Tally()
    for tally, fault in fuzz.run(seed, args.first, backend, engines=args.engines, seconds=seconds):
        if fault is not None:
            print(fault.report(args.kernels))
            return 1
        print(
            f"\r{tally.engines} engines, {tally.answers} answers, {tally.cycles} cycles",
            end="",
            file=sys.stderr,
        )
    done = f"{tally.engines} engines, {tally.answers} answers, {tally.cycles} cycles"
    print(file=sys.stderr)
    print(f"{done}: every token is the teacher's")
    return 0


def parse(argv: list[str]) -> Namespace:
    """The arguments."""
    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    group = parser.add_argument_group("what to check")
    group.add_argument("--minutes", type=_minutes, metavar="N", help="begin no case later (default: 1)")
    group.add_argument("--engines", type=command_line.count, metavar="N", help="check so many cases")
    group.add_argument(
        "--seed", type=command_line.natural, metavar="S", help="of all cases (default: one by the clock)"
    )
    group.add_argument(
        "--first",
        type=command_line.natural,
        default=0,
        metavar="N",
        help="number of the first case (default: 0)",
    )
    group.add_argument(
        "--kernels",
        choices=("auto", "native", "eager"),
        default="auto",
        help="as execution.kernels (default: auto)",
    )
    parser.add_common_options()
    return parser.parse_args(argv)


def _minutes(text: str) -> float:
    """The number that ``--minutes`` gives."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        raise ArgumentTypeError(f"{text!r} found; expected a number of minutes above 0")
    return minutes


if __name__ == "__main__":
    command_line.run(main)
