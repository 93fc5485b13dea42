"""The two engines of a benchmark over a bundle's graphs."""

from ms_eagle.benchmark.pair import EnginePair
from ms_eagle.config.sections import Config
from ms_eagle.deployment.bundle import Bundle
from ms_eagle.deployment.loading import load_deployment
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template


def load_pair(bundle: Bundle, config: Config, progress: Progress) -> EnginePair:
    """Load a bundle for a benchmark; both engines share its weights and caches.

    Args:
        bundle: opened; it has a drafter.
        config: its own, with overrides.
        progress: shows what is loaded.

    Raises:
        UserError: see ``load_deployment`` and ``load_template``.
    """
    deployment = load_deployment(bundle, config, progress)
    teacher, speculative = deployment.engine(drafter=False), deployment.engine()
    return EnginePair(teacher, speculative, load_template(speculative.directory))
