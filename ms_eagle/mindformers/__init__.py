"""Speculation behind MindFormers' own interfaces; see docs/mindformers.md.

Importing this package imports MindFormers and registers ``EagleConfig``, ``EagleForCausalLM`` and a text
generation pipeline with it, for ``use_legacy`` True and False and for its Auto classes. Nothing else in
ms_eagle imports it.

Raises UserError where MindFormers is missing or of another version.
"""

from ms_eagle.mindformers.version import check_version

check_version()

from ms_eagle.mindformers.config import EagleConfig  # noqa: E402 (import mindformers, now known to be there)
from ms_eagle.mindformers.model import EagleForCausalLM  # noqa: E402
from ms_eagle.mindformers.text_pipeline import MaskedTextGeneration  # noqa: E402

__all__ = ["EagleConfig", "EagleForCausalLM", "MaskedTextGeneration"]
