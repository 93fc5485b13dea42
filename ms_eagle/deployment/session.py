"""A session (``ms_eagle.chat.session``) over a bundle."""

from ms_eagle.chat.session import Session
from ms_eagle.config.sections import Config
from ms_eagle.deployment.bundle import Bundle
from ms_eagle.deployment.loading import load_deployment
from ms_eagle.system.progress import Progress
from ms_eagle.text.template import load_template


def load_session(
    bundle: Bundle, config: Config, progress: Progress, *, raw: bool, drafter: bool = True
) -> Session:
    """Load a bundle; its graphs are compiled when the first prompt has been checked.

    Args:
        bundle: opened.
        config: its own, with the overrides of this run.
        progress: shows what is loaded.
        raw: prompts go without a chat template.
        drafter: see ``Deployment.engine``.

    Raises:
        UserError: see ``load_deployment`` and ``load_template``.
    """
    deployment = load_deployment(bundle, config, progress)
    engine = deployment.engine(drafter=drafter)
    template = None if raw else load_template(engine.directory)
    return Session(engine, template, deployment.config, progress)
