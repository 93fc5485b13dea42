"""Compare decoding speed with transformers and llama.cpp, on the same weights and threads."""

import argparse
import json
import os
import sys
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

DESCRIPTION = """\
Compare decoding speed with transformers and llama.cpp: same weights, float32, same threads, one run.

Every peer answers every prompt greedily with the same number of tokens, in turn, each in a process of its own
that is stopped while others have theirs. Prints tokens per second, the ratio to our teacher-only decoding,
time to first token, load time, peak memory, and whether all wrote the same tokens. See docs/peers.md.
"""

EPILOG = """\
examples:
  python tools/benchmark_peers.py
  python tools/benchmark_peers.py --drafter HEAD_DIR
  python tools/benchmark_peers.py --peers ms_eagle transformers llama.cpp --rounds 5
  python tools/benchmark_peers.py --prompts questions.jsonl --limit 10 --new-tokens 128
  python tools/benchmark_peers.py --config configs/qwen2.5_7b.yaml --set model.dtype=float32 --assistant DIR
  python tools/benchmark_peers.py --json | python -m json.tool

peers:
  ms_eagle               our teacher alone, the reference
  ms_eagle-KIND          our engine with the configured drafter, if drafter.kind is not none
  transformers           generate() as it is
  transformers-static    with a static cache
  transformers-compiled  with a static cache and torch.compile (compiles for minutes; only by name)
  transformers-lookup    assisted by prompt lookup
  transformers-assisted  assisted by the model of --assistant
  llama.cpp              through llama-cpp-python, on weights converted to a float32 GGUF file

A peer that is not installed, or fails, is a row that says why: pip install -e '.[peers]' in the clone.
Leave the machine idle meanwhile. Sampling options and batch size of the configuration do not count here.
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config  # when Ctrl-C is in hand
    from ms_eagle.text.prompts import read_prompts

    args = parse(argv)
    config = load_config(args.config, [*args.overrides, *command_line.drafter_overrides(args.drafter)])
    if args.assistant is not None and not (args.assistant / "config.json").is_file():
        raise UserError(
            f"--assistant {args.assistant}: no config.json there; expected a Hugging Face directory"
        )
    texts = None
    if args.prompts is not None:
        texts = [(f"{prompt.question_id}", prompt.turns[0]) for prompt in read_prompts(args.prompts)]
    command_line.begin(args.verbose)
    from ms_eagle.benchmark.peers.comparison import PROMPTS, Plan, compare
    from ms_eagle.benchmark.peers.report import lines
    from ms_eagle.system.progress import Progress

    texts = PROMPTS if texts is None else texts
    plan = Plan(
        new_tokens=args.new_tokens,
        rounds=args.rounds,
        threads=args.threads or config.execution.threads or len(os.sched_getaffinity(0)),
        names=args.peers,
        assistant=None if args.assistant is None else str(args.assistant),
        raw=args.raw,
        timeout=args.timeout,
        verbose=args.verbose,
    )
    report = compare(config, texts[: args.limit], plan, Progress())
    sys.stdout.reconfigure(encoding="utf-8" if args.json else None, errors="replace")
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        command_line.say(*lines(report))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, checked."""
    parser = command_line.Parser("[options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to compare")
    what.add_argument("--peers", metavar="NAME", nargs="+", help="only these, see below")
    what.add_argument(
        "--drafter",
        metavar="KIND|HEAD",
        help="replaces drafter.kind: eagle3 or synthetic; anything else is a head, a directory or"
        " hf:org/name",
    )
    what.add_argument(
        "--assistant",
        metavar="DIR",
        type=Path,
        help="a smaller model with the same tokenizer, for transformers' assisted generation",
    )
    what.add_argument(
        "--prompts",
        metavar="JSONL",
        type=Path,
        help="MT-Bench style file; the first turn of each conversation counts (default: a few built-in ones)",
    )
    what.add_argument("--limit", metavar="N", type=command_line.count, help="only the first N prompts")
    what.add_argument("--raw", action="store_true", help="send prompts without a chat template")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--new-tokens",
        metavar="N",
        type=command_line.count,
        default=64,
        help="tokens of every answer (default: 64)",
    )
    how.add_argument(
        "--rounds",
        metavar="N",
        type=command_line.count,
        default=3,
        help="times that each answer is made (default: 3)",
    )
    how.add_argument(
        "--threads",
        metavar="N",
        type=command_line.count,
        help="CPU threads of every peer (default: execution.threads, or every core the process may use)",
    )
    how.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=command_line.count,
        default=600,
        help="end a peer that takes longer to load or to answer (default: 600)",
    )
    how.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_config_options()
    parser.add_common_options()
    return parser.parse_args(argv)


if __name__ == "__main__":
    command_line.run(main)
