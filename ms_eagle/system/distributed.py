"""Which of several workers this process is, when ``msrun`` has started it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ms_eagle.errors import UserError


@dataclass(frozen=True)
class Worker:
    """One of ``ranks`` processes; ``rank`` counts from 0, the one that leads."""

    rank: int = 0
    ranks: int = 1

    @property
    def leads(self) -> bool:
        """Whether this one writes what all have made."""
        return self.rank == 0


def is_scheduler(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is msrun's scheduler, which has nothing to schedule here."""
    return environment.get("MS_ROLE") == "MS_SCHED"


def worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """What msrun says of this process (its variables MS_ROLE, RANK_ID, MS_WORKER_NUM).

    Raises:
        UserError: msrun has not said which rank this is.
    """
    if environment.get("MS_ROLE") != "MS_WORKER":
        return Worker()
    try:
        this = Worker(int(environment["RANK_ID"]), int(environment["MS_WORKER_NUM"]))
    except (KeyError, ValueError) as error:
        raise UserError(
            "msrun has not told this worker its rank (RANK_ID): start it with --node_rank on every machine"
        ) from error
    if not 0 <= this.rank < this.ranks:
        raise UserError(f"msrun says rank {this.rank} of {this.ranks}; expected one below that number")
    return this
