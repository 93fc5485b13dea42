"""Static sizes of a draft tree."""

import math
from dataclasses import dataclass

from ms_eagle.errors import UserError


@dataclass(frozen=True)
class TreeShape:
    """Static size of a draft tree.

    Args:
        budget: ``M``, draft nodes checked per cycle, from 1 to ``pool_size``.
        depth: ``D``, largest depth of a node, from 1.
        branch: ``k``, children kept per level and made per node, from 1.

    A budget below ``depth`` is allowed: such a tree never reaches its full depth.

    Raises:
        UserError: a value outside its bounds, naming both.
    """

    budget: int
    depth: int
    branch: int

    def __post_init__(self) -> None:
        for name in ("budget", "depth", "branch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserError(f"tree.{name} is {value!r}; expected a whole number, at least 1")
            if value < 1:
                raise UserError(f"tree.{name} is {value}; it must be at least 1")
        if self.budget > self.pool_size:
            raise UserError(
                f"tree.budget is {self.budget}, but depth {self.depth} and branch {self.branch} make only "
                f"{self.pool_size} candidates (k + (D-1)*k*k); lower budget or raise depth or branch"
            )

    @property
    def rows(self) -> int:
        """``N = M + 1``: rows of a tree batch, the root's among them."""
        return self.budget + 1

    @property
    def pool_size(self) -> int:
        """Candidates grown per cycle, without the root: ``k + (D-1)*k*k``."""
        return candidates(self.depth, self.branch)

    def check_vocabulary(self, size: int) -> None:
        """Refuse a draft vocabulary of ``size`` tokens too small for ``branch`` distinct children.

        Raises:
            UserError: ``branch`` exceeds ``size``.
        """
        if self.branch > size:
            raise UserError(
                f"tree.branch is {self.branch}, but the draft vocabulary has only {size} tokens; "
                f"lower branch to at most {size}"
            )


def candidates(depth: int, branch: int) -> int:
    """How many nodes a level-by-level drafter makes: ``k + (D-1)*k*k``."""
    return branch + (depth - 1) * branch**2


_LEAST = -3.4028234663852886e38

Tier = TreeShape | None
"""One compiled tree size; None is plain decoding, a tree that is its root alone."""


def log_confidence(confidence: float) -> float:
    """Natural logarithm of the ``confidence`` threshold; for 0 the least finite number of float32: every node
    is kept but those of score -inf, which are none.

    Raises:
        UserError: ``confidence`` is not a number from 0 to 1.
    """
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise UserError(
            f"tree.confidence is {confidence!r}; expected a probability from 0 to 1 (0: keep all)"
        )
    return math.log(confidence) if confidence > 0 else _LEAST
