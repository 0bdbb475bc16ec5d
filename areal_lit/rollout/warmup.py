"""Warmup: a setting that grows over the first steps of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import final

STEPS_LIMIT = 1_000_000
"""The sums over a warm-up's steps are kept."""


@final
@dataclass(frozen=True, kw_only=True)
class Warmup:
    """A whole number that grows linearly from ``start`` to its full value, which the setting itself gives.

    Args:
        start: at step 0.
        steps: the value is full from this step on.
        multiple_of: values on the way are rounded down to multiples of this, for ``num_minibatches`` to divide.
    """

    start: int
    steps: int
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "steps", "multiple_of"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a warm-up must be >= 1, got {getattr(self, name)}")
        if self.steps > STEPS_LIMIT:
            raise ValueError(f"steps of a warm-up must be <= {STEPS_LIMIT}, got {self.steps}")
        if self.start % self.multiple_of:
            raise ValueError(f"start of a warm-up must be a multiple of {self.multiple_of}, got {self.start}")

    def at(self, step: int, full: int) -> int:
        """The value at a step, where ``full`` is the last one."""
        if step >= self.steps:
            return full
        value = self.start + (full - self.start) * step // self.steps
        return value - value % self.multiple_of

    def total(self, num_steps: int, full: int) -> int:
        """The sum of the values of the first ``num_steps`` steps."""
        inside = min(num_steps, self.steps)
        return _totals(self, full)[inside] + (num_steps - inside) * full


@lru_cache
def _totals(warmup: Warmup, full: int) -> tuple[int, ...]:
    """Sums of the first 0, 1, ... steps, up to the end of the warm-up."""
    return tuple(accumulate((warmup.at(step, full) for step in range(warmup.steps)), initial=0))
