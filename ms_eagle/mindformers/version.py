"""Which MindFormers this package works with."""

from importlib import metadata

from ms_eagle.errors import UserError

SUPPORTED = "1.9.0"


def check_version() -> None:
    """Refuse a MindFormers that this package was not made for, before anything of it is imported.

    Raises:
        UserError: it is not installed, or not of version ``SUPPORTED``.
    """
    wanted = (
        f"ms_eagle.mindformers works with version {SUPPORTED}: pip install -e '.[mindformers]' in the clone"
    )
    try:
        found = metadata.version("mindformers")
    except metadata.PackageNotFoundError:
        raise UserError(f"MindFormers is not installed; {wanted}") from None
    if found != SUPPORTED:
        raise UserError(f"MindFormers {found} is installed; {wanted}")
