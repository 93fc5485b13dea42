"""Tell what the graphs of a bundle are made of, and whether they keep the rules of their target."""

import json
from argparse import Namespace
from pathlib import Path

from ms_eagle.cli import command_line

DESCRIPTION = """\
Tell what the graphs of a bundle are made of: every MINDIR is parsed, every rule of its target checked.

The rules for Ascend: float16 or bfloat16 weights, FlashAttentionScore with a full mask in each teacher layer,
static shapes, int32 indices, no negative constant index, no operator without an Ascend kernel. See
docs/deployment.md.
"""

EPILOG = """\
examples:
  python tools/inspect_bundle.py pangu.bundle
  python tools/inspect_bundle.py pangu.bundle --json | python -m json.tool

exit status 1 says that a rule is broken
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    args = parse(argv)
    from ms_eagle.deployment.bundle import Bundle

    bundle = Bundle.open(args.bundle, trust=True)  # nothing of it runs
    command_line.begin(args.verbose)
    from ms_eagle.deployment.inspection import inspect, lines, record

    found = inspect(bundle)
    if args.json:
        print(json.dumps(record(found)))
    else:
        command_line.say(*lines(found))
    return 0 if found.passed else 1


def parse(argv: list[str]) -> Namespace:
    """The arguments."""
    parser = command_line.Parser("DIR [options]", DESCRIPTION, EPILOG)
    parser.add_argument("bundle", metavar="DIR", type=Path, help="a bundle of tools/export.py")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_common_options()
    return parser.parse_args(argv)


if __name__ == "__main__":
    command_line.run(main)
