"""Make question files of the published files of HumanEval, MT-Bench and GSM8K."""

import sys
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

DESCRIPTION = """\
Make a question file, as --prompts of the other tools reads it, of a published file of HumanEval (.jsonl or
.jsonl.gz: task_id, prompt), MT-Bench (question_id, category, turns) or GSM8K (question, answer).

Of HumanEval's 164 problems and of the 1319 of GSM8K's test set, the 80 that EAGLE measures on are taken, in
its order. The result is compared with EAGLE's file by hash. See docs/benchmark.md, "The 240 turns".
"""

EPILOG = """\
examples:
  python tools/convert_questions.py HumanEval.jsonl.gz --out humaneval.jsonl
  python tools/convert_questions.py question.jsonl --out mt_bench.jsonl
  python tools/convert_questions.py test.jsonl --all --out gsm8k.jsonl
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.benchmark.published import convert
    from ms_eagle.system import files

    parser = command_line.Parser("FILE --out JSONL [options]", DESCRIPTION, EPILOG)
    parser.add_argument("file", metavar="FILE", type=Path, help="the published file")
    parser.add_argument("--out", metavar="JSONL", type=Path, required=True, help="the question file to write")
    parser.add_argument(
        "--all", action="store_true", help="every question, numbered as published, instead of the 80"
    )
    parser.add_common_options()
    args = parser.parse_args(argv)
    files.check_output(args.out, "--out", [args.file])
    if args.out.suffix != ".jsonl":
        raise UserError(f"--out {args.out}: expected a name that ends in .jsonl")
    questions = convert(args.file, args.all)
    files.write_text(args.out, questions.text)
    print(f"{args.out}: {questions.count} questions of {questions.published.name}")
    if questions.as_measured:
        print("the same file, byte for byte, as the one that EAGLE measures on")
    elif not args.all:
        print(
            "note: not the file that EAGLE measures on, whose SHA-256 is"
            f" {questions.published.sha256}: figures differ a little",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    command_line.run(main)
