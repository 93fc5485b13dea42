"""Measure speculation against the teacher alone, turn by turn."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

if TYPE_CHECKING:  # main imports them when Ctrl-C is in hand
    from ms_eagle.config.sections import Config
    from ms_eagle.deployment.bundle import Bundle
    from ms_eagle.system.distributed import Worker

DESCRIPTION = """\
Measure speculation against the teacher alone: every turn is answered by both, one after the other.

Both share one set of weights in one process, and take turns in going first. Conversations of several turns go
on from the model's own answers. A run that was ended goes on where it was when the same command is given
again; a turn that fails is recorded and ends nothing.
"""

BUNDLED_TOKENS = 128  # for a short run on any machine

EPILOG = """\
examples:
  python tools/benchmark.py --config configs/smollm2_135m.yaml
  python tools/benchmark.py --prompts mt_bench.jsonl humaneval.jsonl --max-new-tokens 256 --out runs/paper
  python tools/benchmark.py --drafter synthetic --limit 8 --out runs/try
  python tools/benchmark.py --sweep configs/bench/budget.yaml --limit 24 --out runs/budget
  python tools/benchmark.py --deployed smollm2.bundle --limit 8 --out runs/bundle
  python tools/benchmark.py --compare runs/before runs/after --out runs/both
  msrun --worker_num=4 --local_worker_num=4 tools/benchmark.py --prompts mt_bench.jsonl --out runs/four

files in --out:
  summary.json   turns, tokens_match (fraction of turns whose ids are identical),
                 speedup {mean, p1, p10, p50, p90, p99}, accept_L {mean, p50, p90, p99}, tau,
                 baseline_tps, speculative_tps, stage_ms, manifest, and more; "labels" says what each is.
                 Quantiles of speedup are over turns: p1 is the slow tail, p99 the best turns
  turns.jsonl    one object a turn: lengths, times, accept_L, whether both answers are identical
  manifest.json  what was measured, on what; a run in the same directory must be the same
  report.html    plots of it all, in one file; speedup.svg is the first of them
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.system import distributed

    if distributed.is_scheduler():
        return 0
    args = parse(argv)
    if args.compare is not None:
        return compare(args)
    worker = distributed.worker()
    from ms_eagle.benchmark.plan import bundled, plan

    args.prompts, args.bundled = tuple(args.prompts or bundled()), args.prompts is None
    args.out = args.out or Path(f"benchmark-{(args.deployed or args.config).stem}")
    plan(args.prompts, args.limit)
    args.bundle = None if args.deployed is None else open_bundle(args)
    configure(args, [])  # before MindSpore takes its seconds to import
    command_line.begin(args.verbose)
    return measure(args, worker) if args.sweep is None else sweep(args, worker)


def configure(args: Namespace, more: Sequence[str]) -> "Config":
    """The configuration with all overrides, those of the command line before ``more``."""
    from ms_eagle.config.sections import load_config

    tokens = args.max_new_tokens or (BUNDLED_TOKENS if args.bundled else None)
    limit = [] if tokens is None else [f"generation.max_new_tokens={tokens}"]
    if args.bundle is not None:
        return args.bundle.config([*args.overrides, *limit], args.tree)
    return load_config(
        args.config, [*args.overrides, *command_line.drafter_overrides(args.drafter), *limit, *more]
    )


def open_bundle(args: Namespace) -> "Bundle":
    """The bundle of ``--deployed``, and that the other options go with it."""
    from ms_eagle.deployment.bundle import Bundle

    given = {"--config": args.config != command_line.DEFAULT_CONFIG, "--drafter": args.drafter is not None}
    for option, there in {**given, "--sweep": args.sweep is not None}.items():
        if there:
            raise UserError(
                f"{option} does not go with --deployed: a bundle is compiled for what it measures"
            )
    return Bundle.open(args.deployed, args.trust)


def measure(args: Namespace, worker: "Worker") -> int:
    """One run, or one worker's part of it."""
    from ms_eagle.benchmark import text
    from ms_eagle.benchmark.run import Job, run
    from ms_eagle.system.progress import Progress

    config, profiled = configure(args, []), args.profile if args.bundle is None else 0
    job = Job(config, args.prompts, args.limit, args.out, profiled, args.bundle)
    outcome = run(job, Progress(), worker)
    if outcome.summary is None:
        return 0
    command_line.say(*text.lines(outcome.summary))
    print(args.out / "report.html")
    for rank, undone in outcome.incomplete.items():
        print(
            f"error: rank {rank} ended with {undone} turns undone; the same command runs them",
            file=sys.stderr,
        )
    return 1 if outcome.incomplete else 0


def sweep(args: Namespace, worker: "Worker") -> int:
    """Every point of an ablation."""
    from ms_eagle.benchmark.run import Job
    from ms_eagle.benchmark.sweep import read_sweep, run_sweep
    from ms_eagle.benchmark.sweep_page import lines, write
    from ms_eagle.system.progress import Progress

    if worker.ranks > 1:
        raise UserError("--sweep runs in one process; expected no msrun")
    asked = read_sweep(args.sweep)
    measured = run_sweep(
        asked,
        lambda more: configure(args, more),
        lambda config, out: Job(config, args.prompts, args.limit, out),
        args.out,
        Progress(),
    )
    write(args.out, asked, measured, Job(configure(args, []), args.prompts, args.limit, args.out))
    command_line.say(*lines(measured))
    print(args.out / "report.html")
    return 0 if any("error" not in m.found for m in measured) else 1


def compare(args: Namespace) -> int:
    """Two runs side by side."""
    from ms_eagle.benchmark.compare import lines, page, read
    from ms_eagle.system import files

    a, b = (read(directory) for directory in args.compare)
    command_line.say(*lines(a, b))
    if args.out is not None:
        files.write_text(args.out / "compare.html", page(a, b))
        print(args.out / "compare.html")
    return 0


def parse(argv: list[str]) -> Namespace:
    """The arguments, checked against each other."""
    parser = command_line.Parser("[--prompts JSONL ...] [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--prompts",
        metavar="JSONL",
        type=Path,
        nargs="+",
        help="files of conversations as in MT-Bench (default: configs/prompts/benchmark/*.jsonl, with at most"
        f" {BUNDLED_TOKENS} new tokens a turn)",
    )
    what.add_argument(
        "--limit", metavar="T", type=command_line.count, help="so many turns, across categories"
    )
    what.add_argument(
        "--max-new-tokens", metavar="X", type=command_line.count, help="replaces generation.max_new_tokens"
    )
    what.add_argument(
        "--drafter",
        metavar="KIND|HEAD",
        help="replaces drafter.kind: eagle3 or synthetic; anything else is a head, a directory or"
        " hf:org/name",
    )
    what.add_argument(
        "--deployed",
        metavar="DIR",
        type=Path,
        help="measure a bundle of tools/export.py, without the model code and without a stage profile",
    )
    what.add_argument(
        "--tree", metavar="BUDGETxDEPTHxBRANCH", help="which of the bundle's tree shapes; default: its first"
    )
    parser.add_trust_option(what)
    what.add_argument(
        "--profile",
        metavar="N",
        type=command_line.natural,
        default=4,
        help="turns of the stage profile, which follows the measurement; 0 makes none (default: 4)",
    )
    what.add_argument(
        "--sweep", metavar="YAML", type=Path, help="an ablation: a run for each setting, as in configs/bench"
    )
    what.add_argument(
        "--compare",
        metavar=("A", "B"),
        type=Path,
        nargs=2,
        help="measure nothing: print two finished runs side by side, and with --out draw them",
    )
    what.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="directory of the run (default: benchmark-<name of the configuration>)",
    )
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    if args.trust and args.deployed is None:
        raise UserError("--trust is for the kernel sources of a bundle: use it with --deployed")
    if args.tree is not None and args.deployed is None:
        raise UserError("--tree chooses among the shapes of a bundle: use it with --deployed")
    return args


if __name__ == "__main__":
    command_line.run(main)
