"""The learning rate over the steps."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A linear rise, then half a cosine down to a floor.

    Attributes:
        peak: largest rate.
        steps: in all.
        warmup: share of the steps that the rise takes.
        floor: share of ``peak`` that the last step has.
    """

    peak: float
    steps: int
    warmup: float
    floor: float

    def rate(self, step: int) -> float:
        """Rate of a step, counted from 0: the first is above 0, the last is the floor."""
        rise = math.ceil(self.steps * self.warmup)
        if step < rise:
            return self.peak * (step + 1) / rise
        done = (step - rise + 1) / (self.steps - rise)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))
