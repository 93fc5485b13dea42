"""Say what formats of weights cost in quality: a model against itself in another format."""

import dataclasses
import json
import sys
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.cli.texts import read_text

DESCRIPTION = """\
Say what formats of weights cost in quality: a model against itself in another format.

Each format reads a fixed text, up to 1024 tokens, and answers a few fixed prompts greedily. Printed are the
bytes of its weights, the perplexity of the text, the mean Kullback-Leibler divergence of its next-token
distribution from the reference's, how often both find the same token most probable, and how far its answers
go along with the reference's. See docs/weights.md.
"""

EPILOG = """\
examples:
  python tools/check_model.py --config configs/smollm2_135m.yaml
  python tools/check_model.py --config my.yaml --formats auto --text notes.txt --json

For the default model it takes about a minute.
"""


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is returned, mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config  # when Ctrl-C is in hand

    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to measure")
    formats = ("float32", "auto", "int8", "int4")
    what.add_argument(
        "--formats",
        nargs="+",
        choices=formats,
        default=formats,
        help="values of model.weights to compare (default: all of them; auto is what the file holds)",
    )
    what.add_argument("--against", choices=formats, default="float32", help="the reference (float32)")
    what.add_argument("--text", metavar="FILE", type=Path, help="a text to read instead of the fixed one")
    what.add_argument("--json", action="store_true", help="print one JSON object a format")
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    config = load_config(args.config, args.overrides)
    text = None if args.text is None else read_text(args.text)
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.diagnosis.quality import PASSAGE, compare, lines
    from ms_eagle.pages.columns import aligned
    from ms_eagle.system.progress import Progress

    if text is None:
        text = PASSAGE.read_text(encoding="utf-8")
    found = compare(config, tuple(dict.fromkeys(args.formats)), args.against, text, Progress())
    sys.stdout.reconfigure(encoding="utf-8" if args.json else None, errors="replace")
    records = [json.dumps(dataclasses.asdict(each)) for each in found]
    print("\n".join(records if args.json else aligned(lines(found))))
    return 0


if __name__ == "__main__":
    command_line.run(main)
