"""Model directories from the Hugging Face Hub, or from its local cache when there is no network."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress

# Never *.bin, *.pt or *.pth: pickles run code when they are read.
ALLOWED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
_IGNORED = ("*/*", "consolidated*")  # other copies of the same weights
_FORM = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_TIMEOUT_SECONDS = 10


def fetch(reference: str, progress: Progress, cache_dir: Path | None = None) -> tuple[Path, str]:
    """Bring a snapshot of a repository to the local Hub cache.

    Without network, the snapshot that the cache holds for the revision is used.

    Args:
        reference: ``org/name`` or ``org/name@revision`` (a branch, a tag or a commit).
        progress: download bars appear only where it is visible.
        cache_dir: a Hub cache directory; None is the user's own (``HF_HOME`` and the like apply).

    Returns: the snapshot's directory and ``org/name@commit``.

    Raises:
        UserError: malformed reference, no such repository or revision, no access, or neither network nor
            a cached copy.
    """
    repository, revision = check_form(reference)
    directory = _snapshot(repository, revision, progress, cache_dir)
    if not any(directory.glob("*.safetensors")):
        raise UserError(
            f"hf:{reference} has no .safetensors files in {directory}; choose a repository that has them, "
            "or, if a download was cut off, run again with network"
        )
    return directory, f"{repository}@{directory.name}"


def check_form(reference: str) -> tuple[str, str | None]:
    """Repository and revision of ``org/name[@revision]``.

    Raises:
        UserError: it is of another form.
    """
    match = _FORM.fullmatch(reference)
    if match is None:
        raise UserError(f"hf:{reference} is not of the form hf:org/name[@revision]")
    return match["repository"], match["revision"]


def _snapshot(repository: str, revision: str | None, progress: Progress, cache_dir: Path | None) -> Path:
    # Imported here: it takes a third of a second that local sources need not wait for.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from requests.exceptions import RequestException

    def download(local_files_only: bool) -> Path:
        with _calm(progress):
            directory = snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(ALLOWED),
                ignore_patterns=list(_IGNORED),
                etag_timeout=_TIMEOUT_SECONDS,
                local_files_only=local_files_only,
            )
        return Path(directory)

    source = f"hf:{repository}" + (f"@{revision}" if revision else "")
    try:
        try:
            return download(local_files_only=False)
        except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, LocalEntryNotFoundError):
            raise
        except RequestException:
            return download(local_files_only=True)
    except GatedRepoError as error:
        raise UserError(f"{source} needs its licence accepted and a login (hf auth login)") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{source}: the repository has no such revision") from error
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"{source} is not in the local Hugging Face cache and the Hub cannot be reached; "
            "connect once, or name a local copy: a directory, or for a model a .gguf file"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(f"{source}: no such repository, or a private one without a login") from error
    except HFValidationError as error:
        raise UserError(f"{source} is not a repository name of the Hub: {error}") from error


@contextlib.contextmanager
def _calm(progress: Progress) -> Iterator[None]:
    """Show the Hub library's bars only where ours would show, and its warnings nowhere.

    What it warns of while it retries ends in one line of ours.
    """
    from huggingface_hub import constants, utils

    level = utils.logging.get_verbosity()
    silence = not (
        progress.visible
        or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None  # the user decided
        or utils.are_progress_bars_disabled()
    )
    utils.logging.set_verbosity_error()
    if silence:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.logging.set_verbosity(level)
        if silence:
            utils.enable_progress_bars()
