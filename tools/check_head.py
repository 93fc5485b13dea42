"""Say whether an EAGLE-3 head fits its teacher, and if not, why."""

import json
import sys
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.cli.texts import read_text

DESCRIPTION = """\
Say whether an EAGLE-3 head fits its teacher, and if not, why.

The teacher answers a few fixed prompts; then the head drafts from every position of the answers, and its
proposals are compared with what the teacher chose. Where agreement is low, other readings of the head (taps,
rope, vocabulary map, norms) are tried and the one that helps is named. See docs/check_head.md.
"""

EPILOG = """\
examples:
  python tools/check_head.py --config configs/qwen3_8b.yaml --set drafter.source=/models/Qwen3-8B-eagle3
  python tools/check_head.py --config my.yaml --text notes.txt
  python tools/check_head.py --config my.yaml --json | python -m json.tool

The head is that of drafter.source, whatever drafter.kind says; tree.depth and tree.branch say how deep and
how wide to look. The exit status does not depend on the verdict.
"""


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is returned, mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config  # when Ctrl-C is in hand

    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="a text to read instead of the teacher's own answers; depths past 1 count where it goes on as"
        " the teacher would",
    )
    what.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    config = load_config(args.config, args.overrides)
    text = None if args.text is None else (str(args.text), read_text(args.text))
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.diagnosis.check import check_head
    from ms_eagle.diagnosis.report import lines, record
    from ms_eagle.system.progress import Progress

    report = check_head(config, text, Progress())
    sys.stdout.reconfigure(encoding="utf-8" if args.json else None, errors="replace")
    if args.json:
        print(json.dumps(record(report), ensure_ascii=False))
    else:
        command_line.say(*lines(report))
    return 0


if __name__ == "__main__":
    command_line.run(main)
