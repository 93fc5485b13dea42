"""Export a model as a bundle that runs without the model code."""

import sys
from argparse import Namespace
from pathlib import Path

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

DESCRIPTION = """\
Export a model, with its drafter, as a bundle: compiled graphs (MINDIR), weights once, tokenizer, template.

tools/infer.py and tools/benchmark.py run a bundle with --deployed; tools/inspect_bundle.py tells what its
graphs are made of. A bundle for Ascend is made on any host, with or without an NPU. See docs/deployment.md.
"""

EPILOG = """\
examples:
  python tools/export.py --target cpu --out smollm2.bundle
  python tools/export.py --target cpu --tree 16x5x8 --out smollm2.bundle
  python tools/export.py --config configs/openpangu_embedded_1b.yaml --target ascend --out pangu.bundle
  python tools/export.py --config configs/openpangu_embedded_7b.yaml --target ascend --drafter eagle3 \
      --random-weights --layers 4 --out try.bundle
  python tools/infer.py --deployed smollm2.bundle --prompt "Why is the sky blue?"

files in --out:
  manifest.json        schema version, shapes, slots, number formats, kernels, versions, hashes of all files
  *.mindir             prefill and cycles: of the teacher alone, and for every tree shape
  weights.safetensors  every weight once, in the layout that the graphs take
  tokenizer/, config.yaml
  kernels/             for --target cpu: the sources of the native kernels
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config

    args = parse(argv)
    config = load_config(args.config, [*args.overrides, *command_line.drafter_overrides(args.drafter)])
    command_line.begin(args.verbose)
    # MindSpore takes seconds to import: not before everything that can be refused has been checked.
    from ms_eagle.deployment.assembly import Randomly
    from ms_eagle.deployment.export import export_bundle
    from ms_eagle.system.progress import Progress
    from ms_eagle.tree.shape import TreeShape

    manifest = export_bundle(
        config,
        args.target,
        args.out,
        Progress(),
        trees=[TreeShape(*sizes) for sizes in args.tree],
        randomly=Randomly(args.layers) if args.random_weights else None,
    )
    size = sum(record.bytes for record in manifest.files)
    print(f"{args.out}: {len(manifest.graphs)} graphs, {size / 1e6:.0f} MB", file=sys.stderr)
    print(args.out)
    return 0


def parse(argv: list[str]) -> Namespace:
    """The arguments, checked."""
    parser = command_line.Parser("--target cpu|ascend --out DIR [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to export")
    what.add_argument("--target", choices=("cpu", "ascend"), required=True, help="where the bundle will run")
    what.add_argument("--out", metavar="DIR", type=Path, required=True, help="directory to make")
    what.add_argument(
        "--drafter",
        metavar="KIND|HEAD",
        help="replaces drafter.kind: none exports the teacher alone; anything else is a head for eagle3, a"
        " directory or hf:org/name",
    )
    what.add_argument(
        "--tree",
        metavar="BUDGETxDEPTHxBRANCH",
        type=_sizes,
        action="append",
        default=[],
        help="a further tree shape to have cycles for; may be repeated",
    )
    what.add_argument(
        "--random-weights",
        action="store_true",
        help="try an export: model.source is a directory with config.json and tokenizer but no weights, which"
        " are drawn at random, those of a head for --drafter eagle3 too",
    )
    what.add_argument(
        "--layers",
        metavar="L",
        type=command_line.count,
        help="with --random-weights: so many teacher layers instead of the model's own number",
    )
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    if args.layers is not None and not args.random_weights:
        raise UserError("--layers makes another model of it: use it with --random-weights")
    return args


def _sizes(text: str) -> tuple[int, int, int]:
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--tree {text}: expected BUDGETxDEPTHxBRANCH, such as 16x5x8")
    return int(parts[0]), int(parts[1]), int(parts[2])


if __name__ == "__main__":
    command_line.run(main)
