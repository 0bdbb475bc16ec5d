"""Refresh: how a frozen role follows the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Refresh:
    """When a frozen role takes weights of the policy, and how much of them (arXiv 2404.09656).

    new weights = ``decay`` x own + (1 - ``decay``) x policy. So ``decay`` 0 copies the policy every ``every_steps``
    training steps, and 0.99 after each step is a moving average.

    Args:
        every_steps: after every so many training steps.
        decay: share of its own weights that the role keeps, in [0, 1).
    """

    every_steps: int
    decay: float = 0.0

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(f"every_steps must be >= 1, got {self.every_steps}; leave refresh out for a fixed model")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}; leave refresh out for a fixed model")

    def is_due(self, step: int) -> bool:
        """Whether the role is refreshed after ``step`` training steps."""
        return step % self.every_steps == 0
