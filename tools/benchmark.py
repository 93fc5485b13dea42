"""Measure speculation against the teacher alone, turn by turn."""

import argparse
import sys
from argparse import Namespace
from pathlib import Path

from ms_eagle import command_line

DESCRIPTION = """\
Measure speculation against the teacher alone: every turn is answered by both, one after the other.

Both share one set of weights in one process, and take turns in going first. Conversations of several turns go
on from the model's own answers. A run that was ended goes on where it was when the same command is given
again; a turn that fails is recorded and ends nothing.
"""

EPILOG = """\
examples:
  python tools/benchmark.py --config configs/smollm2_135m.yaml
  python tools/benchmark.py --prompts mt_bench.jsonl humaneval.jsonl --max-new-tokens 256 --out runs/paper
  python tools/benchmark.py --set drafter.kind=synthetic --limit 8 --out runs/try
  msrun --worker_num=4 --local_worker_num=4 tools/benchmark.py --prompts mt_bench.jsonl --out runs/four

files in --out:
  summary.json   turns, tokens_match (fraction of turns whose ids are identical),
                 speedup {mean, p1, p10, p50, p90, p99}, accept_L {mean, p50, p90, p99}, tau,
                 baseline_tps, speculative_tps, stage_ms, manifest, and more; "labels" says what each is.
                 Quantiles of speedup are over turns: p1 is the slow tail, p99 the best turns
  turns.jsonl    one object a turn: lengths, times, accept_L, whether both answers are identical
  manifest.json  what was measured, on what; a run in the same directory must be the same
  report.html    plots of it all, in one file
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.benchmark import launcher

    if launcher.is_scheduler():
        return 0
    args = parse(argv)
    worker = launcher.worker()
    from ms_eagle.benchmark.plan import bundled, plan
    from ms_eagle.config import load_config

    config = load_config(args.config, [*args.overrides, *generation_overrides(args)])
    prompts = tuple(args.prompts or bundled())
    plan(prompts, args.limit)  # before MindSpore takes its seconds to import
    command_line.begin(args.verbose)
    from ms_eagle.benchmark import text
    from ms_eagle.benchmark.run import Job, run
    from ms_eagle.progress import Progress

    out = args.out or Path(f"benchmark-{args.config.stem}")
    outcome = run(Job(config, prompts, args.limit, out, args.profile), Progress(), worker)
    if outcome.summary is None:
        return 0
    print("\n".join(text.lines(outcome.summary)))
    print(out)
    for rank, count in outcome.incomplete.items():
        print(
            f"error: rank {rank} ended with {count} turns undone; the same command runs them", file=sys.stderr
        )
    return 1 if outcome.incomplete else 0


def parse(argv: list[str]) -> Namespace:
    """The arguments, checked against each other."""
    parser = command_line.Parser("[--prompts JSONL ...] [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--prompts",
        metavar="JSONL",
        type=Path,
        nargs="+",
        help="files of conversations as in MT-Bench (default: configs/prompts/*.jsonl, with at most"
        f" {BUNDLED_TOKENS} new tokens a turn)",
    )
    what.add_argument("--limit", metavar="T", type=count, help="only the first T turns")
    what.add_argument("--max-new-tokens", metavar="X", type=count, help="replaces generation.max_new_tokens")
    what.add_argument(
        "--profile",
        metavar="N",
        type=natural,
        default=4,
        help="turns of the stage profile, which follows the measurement; 0 makes none (default: 4)",
    )
    what.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="directory of the run (default: benchmark-<name of the configuration>)",
    )
    parser.add_config_options()
    parser.add_common_options()
    return parser.parse_args(argv)


BUNDLED_TOKENS = 128


def generation_overrides(args: Namespace) -> list[str]:
    """What ``--max-new-tokens`` stands for; the bundled prompts are for a short run."""
    tokens = args.max_new_tokens or (BUNDLED_TOKENS if args.prompts is None else None)
    return [] if tokens is None else [f"generation.max_new_tokens={tokens}"]


def count(text: str) -> int:
    """The number that an option gives, at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """The number that an option gives, at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} found; expected a whole number of at least {least}")
    return number


if __name__ == "__main__":
    command_line.run(main)
