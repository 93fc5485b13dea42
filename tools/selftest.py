"""Test an installation on any device and write one report file."""

import sys
from argparse import Namespace
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError
from ms_eagle.system import files

DESCRIPTION = """\
Test an installation on the device it runs on: attention kernels against eager attention over shapes, number
formats and cache lengths; answers with speculation against answers without; where a cycle's time goes.

Everything found goes into one JSON file, which is what to send with a report (docs/ascend.md).
"""

EPILOG = """\
examples:
  python tools/selftest.py
  python tools/selftest.py --config configs/openpangu_embedded_1b.yaml --drafter synthetic --out report.json

exit status 1 says that a part failed; without a trained head, --drafter synthetic tests the machinery
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config

    args = parse(argv)
    config = load_config(args.config, [*args.overrides, *command_line.drafter_overrides(args.drafter)])
    if config.execution.mode != "performance":
        raise UserError("execution.mode is reference; the self-test measures performance mode: leave it out")
    files.check_output(args.out, "--out", [args.config])
    command_line.begin(args.verbose)
    from ms_eagle.benchmark.selftest import selftest
    from ms_eagle.system import json_file
    from ms_eagle.system.progress import Progress

    outcome = selftest(config, Progress())
    json_file.write_object(args.out, outcome.report)
    command_line.say(*outcome.lines)
    print(args.out)
    sys.stdout.flush()
    return 0 if outcome.passed else 1


def parse(argv: list[str]) -> Namespace:
    """The arguments."""
    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to test")
    what.add_argument(
        "--drafter",
        metavar="KIND|HEAD",
        help="replaces drafter.kind: eagle3 or synthetic; anything else is a head, a directory or"
        " hf:org/name",
    )
    what.add_argument(
        "--out",
        metavar="JSON",
        type=Path,
        default=Path("selftest.json"),
        help="the report file; one that is there is replaced (default: selftest.json)",
    )
    parser.add_config_options()
    parser.add_common_options()
    return parser.parse_args(argv)


if __name__ == "__main__":
    command_line.run(main)
