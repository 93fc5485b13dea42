"""Train an EAGLE-3 head for a teacher, or continue to."""

import json
import signal
import sys

from ms_eagle.cli import command_line

DESCRIPTION = """\
Train an EAGLE-3 head on a teacher's own answers.

The output directory receives the best head so far (head/), a checkpoint, the figures of every step and
evaluation as CSV, and curves.svg. A run that was interrupted, or killed, is continued by the same command.
"""

EPILOG = """\
examples:
  python tools/train_draft.py --config configs/train/smollm2_135m.yaml
  python tools/train_draft.py --set optimization.learning_rate=4e-4 --out runs/lower
  python tools/infer.py --drafter runs/lower/head
  msrun --worker_num=2 --local_worker_num=2 tools/train_draft.py --parallel --config C.yaml

Ctrl-C and SIGTERM end the run after the step in flight, with a checkpoint; a second Ctrl-C ends it at once.
How to make a corpus, and what the figures mean: docs/training.md.
"""


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is returned, mistakes are raised as UserError."""
    from ms_eagle.training.config import load_training_config

    parser = command_line.Parser("[--config YAML] [--out DIR] [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to do")
    what.add_argument("--out", metavar="DIR", help="directory of the run, replaces output.directory")
    what.add_argument(
        "--layout",
        choices=("sglang", "safeailab", "speculators"),
        help="whose code shall read the head, replaces output.layout",
    )
    what.add_argument(
        "--parallel",
        action="store_true",
        help="this is one of several workers that msrun started; each trains on other rows",
    )
    parser.add_config_options(
        command_line.TRAINING_CONFIG, "optimization.learning_rate=4e-4", "docs/training_config.md"
    )
    parser.add_common_options()
    args = parser.parse_args(argv)
    out = [] if args.out is None else [f"output.directory={json.dumps(args.out)}"]
    layout = [] if args.layout is None else [f"output.layout={args.layout}"]
    config = load_training_config(args.config, [*args.overrides, *out, *layout])
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.system.progress import Progress
    from ms_eagle.training.run.session import train

    ended = train(config, Progress(), say, args.parallel)
    if ended is None:
        return 0
    say(f"run the same command again to continue in {config.output.directory}")
    return 128 + signal.Signals(ended)


def say(line: str) -> None:
    """Print one line at once, above a progress bar too."""
    print(line, file=sys.stdout, flush=True)


if __name__ == "__main__":
    command_line.run(main)
