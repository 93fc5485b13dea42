"""Write an EAGLE-3 head again in the layout that other code reads."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError

if TYPE_CHECKING:
    from ms_eagle.config.sections import Config

DESCRIPTION = """\
Write an EAGLE-3 head again in the layout that other code reads.

The head of drafter.source is read as tools/check_head.py and tools/infer.py read it, drafter.taps and the
other keys that overrule its config.json included. A head that the layout cannot say is refused. See
docs/head_formats.md, "Layouts that are written".
"""

EPILOG = """\
examples:
  python tools/convert_head.py --layout speculators --out smollm2-speculator
  python tools/convert_head.py --config configs/qwen3_8b.yaml --set drafter.source=/models/head \\
      --set drafter.norm_output=false --layout sglang --out head-for-sglang

layouts:
  sglang       SGLang and SpecForge
  safeailab    SafeAILab's EAGLE and vLLM
  speculators  vLLM and speculators
"""


def main(argv: list[str]) -> int:
    """Run the command line; mistakes are raised as UserError."""
    from ms_eagle.config.sections import load_config

    parser = command_line.Parser("--layout LAYOUT --out DIR [options]", DESCRIPTION, EPILOG)
    what = parser.add_argument_group("what to write")
    what.add_argument("--layout", choices=("sglang", "safeailab", "speculators"), required=True)
    what.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new directory")
    what.add_argument(
        "--dtype", choices=("float16", "float32"), help="number format; float32 unless the head is in float16"
    )
    parser.add_config_options()
    parser.add_common_options()
    args = parser.parse_args(argv)
    if args.out.exists():
        raise UserError(f"--out {args.out} exists: name a new directory")
    config = load_config(args.config, args.overrides)
    command_line.begin(args.verbose)
    return convert(config, args)


def convert(config: Config, args: Namespace) -> int:
    """Read and write the head; the status."""
    from ms_eagle.drafters.eagle3 import blueprint, layouts
    from ms_eagle.drafters.eagle3.checkpoint import load_head
    from ms_eagle.loading import open_model
    from ms_eagle.system import json_file
    from ms_eagle.system.progress import Progress

    progress = Progress()
    model = open_model(config, progress)
    directory = blueprint.locate(config, progress)
    head = load_head(directory, teacher=model.decoder, **blueprint.overrules(config))
    for note in head.config.doubts:
        progress.note(note)
    head = layouts.without_copied_embedding(head, model.checkpoint.read("model.embed_tokens.weight"))
    facts = layouts.TeacherFacts(model.decoder.num_layers, model.decoder.architecture, config.model.source)
    layout = layouts.chosen(head.config, args.layout, facts.num_layers)
    dtype = args.dtype or ("float16" if head.dtype == "F16" else "float32")
    trained_by = json_file.read_object(directory / "config.json").get("trained_by")
    options = {"layout": layout, "teacher": facts, "dtype": dtype, "trained_by": trained_by}
    layouts.write_head(args.out, head.config, head.tensors, head.target_ids, **options)
    sys.stdout.write(f"{args.out}: {layout}, {dtype}, for {layouts.LAYOUTS[layout].readers}\n")
    return 0


if __name__ == "__main__":
    command_line.run(main)
