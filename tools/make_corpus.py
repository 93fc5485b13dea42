"""Make a corpus for training a head: conversations that the teacher itself wrote."""

import sys
from argparse import Namespace
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError
from ms_eagle.system import files
from ms_eagle.text.prompts import read_prompts

DESCRIPTION = """\
Make a corpus for training a head: conversations that the teacher itself wrote.

User turns come from prompt files, and from the teacher, which is made to go on where a user's words begin.
Answers are the teacher's own, greedy. Finished work is kept beside the file while a run is under way: the
same command goes on after Ctrl-C or a kill, and an order for more extends a finished file. See
docs/corpus.md.
"""

EPILOG = """\
examples:
  python tools/make_corpus.py --prompts configs/prompts/train_seed.jsonl --self 2000 --out corpus.npz
  python tools/make_corpus.py --self 3000 --follow-ups 500 --out corpus.npz
  python tools/make_corpus.py --import older.npz --self 1000 --batch 32 --out corpus.npz
  python tools/make_corpus.py --config configs/qwen3_8b.yaml --set model.max_length=1024 --self 5000 \\
      --out qwen3.npz

The section generation of the configuration is not used. The caches take memory for the batch times
model.max_length: lower one of them where memory is short.
"""


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is returned, mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config  # when Ctrl-C is in hand

    args = parse(argv)
    alone = ["drafter.kind=none", "execution.mode=performance", "execution.trace=null"]
    config = load_config(args.config, [*args.overrides, *alone, f"execution.batch_size={args.batch}"])
    prompts = tuple((path.stem, tuple(read_prompts(path))) for path in args.prompts)
    files.make_parent(args.out, "--out")
    files.check_output(args.out, "--out", [args.config, *args.prompts, *args.imports])
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.system.progress import Progress
    from ms_eagle.training.corpus.maker import Order, Settings, make_corpus

    order = Order(tuple(args.imports), prompts, args.self_turns, args.follow_ups)
    settings = Settings(args.max_new_tokens, args.turn_tokens, seed=args.seed)
    try:
        corpus = make_corpus(args.out, order, config, settings, Progress())
    except KeyboardInterrupt:
        print("finished work is kept: the same command goes on with it", file=sys.stderr)
        raise
    if corpus is None:
        print(f"{args.out} is complete: it holds all that was asked for")
        return 0
    manifest = corpus.manifest
    print(f"{args.out}: {len(corpus)} conversations, {sum(manifest.answer_tokens.values())} answer tokens")
    for name, count in manifest.conversations.items():
        command_line.say(f"  {name}: {count} conversations, {manifest.answer_tokens[name]} answer tokens")
    if manifest.dropped:
        print("left out: " + ", ".join(f"{count} {reason}" for reason, count in manifest.dropped.items()))
    return 0


def parse(argv: list[str]) -> Namespace:
    """The arguments, checked."""
    parser = command_line.Parser("--out NPZ [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what the corpus shall hold")
    what.add_argument("--out", metavar="NPZ", type=Path, required=True, help="the corpus file")
    what.add_argument(
        "--prompts",
        metavar="JSONL",
        type=Path,
        action="append",
        default=[],
        help="answer a file of conversations, as in MT-Bench; may be repeated",
    )
    what.add_argument(
        "--self",
        metavar="N",
        type=int,
        default=0,
        dest="self_turns",
        help="user turns that the teacher writes, in all; those of no use are dropped",
    )
    what.add_argument(
        "--follow-ups",
        metavar="N",
        type=int,
        default=0,
        help="conversations made here, in all, that the teacher gives a second user turn",
    )
    what.add_argument(
        "--import",
        metavar="NPZ",
        type=Path,
        action="append",
        default=[],
        dest="imports",
        help="adopt conversations made elsewhere, if they prove to be this teacher's; may be repeated",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--max-new-tokens", metavar="N", type=int, default=400, help="most tokens of an answer (default: 400)"
    )
    how.add_argument(
        "--turn-tokens",
        metavar="N",
        type=int,
        default=160,
        help="most tokens of a user turn that the teacher writes (default: 160)",
    )
    how.add_argument("--seed", metavar="N", type=int, default=0, help="of the user turns (default: 0)")
    how.add_argument(
        "--batch", metavar="B", type=int, default=32, help="conversations written at a time (default: 32)"
    )
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    for name, lowest in (
        ("self", 0),
        ("follow-ups", 0),
        ("max-new-tokens", 1),
        ("turn-tokens", 1),
        ("seed", 0),
        ("batch", 1),
    ):
        value = getattr(args, "self_turns" if name == "self" else name.replace("-", "_"))
        if value < lowest:
            raise UserError(f"--{name} is {value}; expected {lowest} or more")
    if args.out.suffix != ".npz":
        raise UserError(f"--out {args.out}: expected a name that ends in .npz")
    for path in (*args.prompts, *args.imports):
        check_not_evaluation(path)
    return args


def check_not_evaluation(path: Path) -> None:
    """Refuse a file below a folder named ``eval``: what measures a head must not train it."""
    if "eval" in (*path.parts[:-1], *path.resolve().parent.parts):
        raise UserError(f"{path} lies in a folder named eval: evaluation data must not go into a corpus")


if __name__ == "__main__":
    command_line.run(main)
