"""Turn a trace into one HTML page."""

from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError
from ms_eagle.system import files

DESCRIPTION = """\
Turn a trace of reference mode into one self-contained HTML page.

The page shows the text coloured by how each token came to be, the tree of every cycle with its accepted
path, acceptance by depth, and time by stage. It loads nothing from elsewhere.
"""

EPILOG = """\
examples:
  python tools/infer.py --prompt "Why is the sky blue?" --set execution.mode=reference --trace run.jsonl
  python tools/trace_view.py run.jsonl --out run.html

The records of a trace are described in docs/trace.md.
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    parser = command_line.Parser("TRACE.jsonl [--out HTML]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to draw")
    what.add_argument("trace", metavar="TRACE.jsonl", type=Path, help="the trace")
    what.add_argument(
        "--out", metavar="HTML", type=Path, help="the page to write (default: the trace's name, with .html)"
    )
    parser.add_common_options()
    args = parser.parse_args(argv)
    args.out = args.out or args.trace.with_suffix(".html")
    files.check_output(args.out, "--out", [args.trace])
    command_line.begin(args.verbose)
    from ms_eagle.reference.page.view import page
    from ms_eagle.reference.trace import read_trace

    text = page(read_trace(args.trace))
    try:
        files.write_text(args.out, text)
    except OSError as error:
        raise UserError(f"cannot write {args.out}: {error.strerror}") from error
    print(args.out)
    return 0


if __name__ == "__main__":
    command_line.run(main)
