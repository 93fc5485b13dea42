"""An EAGLE-3 drafter's work level by level, each step a Cell that is compiled alone.

Rows have Cells of their own, so that they can be checked before a forward uses them.
"""

from mindspore import Tensor, nn

from ms_eagle.drafters.base import Watch
from ms_eagle.models.stage import Stage
from ms_eagle.tree.growth import Pool

POOL = 4  # tensors of a ``tree.Pool``
BEAM = 5  # tensors of a ``tree.Beam``


class Level(nn.Cell):
    """A further level: one forward of the head."""

    def __init__(self, drafter: nn.Cell, level: int) -> None:
        super().__init__()
        self.drafter, self.level = drafter, level

    def construct(self, hidden: Tensor, n: Tensor, active: Tensor, *grown: Tensor) -> tuple:
        """See ``Eagle3Drafter.grow``; ``grown`` are the tensors of pool, beam and hints."""
        pool, beam, hints = grown[:POOL], grown[POOL : POOL + BEAM], grown[POOL + BEAM :]
        return self.drafter.grow(pool, beam, hidden, n, active, self.level, *hints)


class LevelStages:
    """See ``base.Stages``."""

    def __init__(self, drafter: nn.Cell) -> None:
        """Cut an ``Eagle3Drafter`` up."""
        steps = drafter.steps
        self._branch = drafter.branch
        self._sprout, self._level_rows = Stage(drafter.sprout), Stage(steps.level_rows)
        self._levels = [Level(drafter, level) for level in range(drafter.depth - 1)]
        self._take_rows, self._take = Stage(steps.chunk_rows), Stage(drafter.take)
        self.cells = (self._sprout, self._level_rows, *self._levels, self._take_rows, self._take)

    def propose(
        self,
        root: Tensor,
        n: Tensor,
        active: Tensor,
        state: Tensor,
        hints: tuple[Tensor, ...],
        watch: Watch | None,
    ) -> tuple[Pool, Tensor]:
        """See ``base.Stages``."""
        pool, beam, hidden, broken = self._sprout(root, state, *hints)
        faults = broken.asnumpy()
        if watch is not None:
            watch.grown(pool, beam, 1)
        for level in self._levels:
            if watch is not None:
                rows = self._level_rows(n, active, beam[BEAM - 1])
                watch.rows(rows, n, beam[BEAM - 1])
            pool, beam, hidden, broken = level(hidden, n, active, *pool, *beam, *hints)
            faults = faults | broken.asnumpy()
            if watch is not None:
                watch.written(rows, n)
                watch.grown(pool, beam, self._branch)
        return pool, Tensor(faults)

    def take(
        self, taps: Tensor, emitted: Tensor, n: Tensor, count: Tensor, state: Tensor, watch: Watch | None
    ) -> Tensor:
        """See ``base.Stages``."""
        if watch is None:
            return self._take(taps, emitted, n, count, state)
        rows = self._take_rows(emitted, n, count)
        watch.rows(rows, n, None)
        state = self._take(taps, emitted, n, count, state)
        watch.written(rows, n)
        return state
