"""Refresh: how a frozen role follows the policy."""

from __future__ import annotations

from typing import final


@final
class Refresh:
    """When a frozen role takes weights of the policy, and how much of them (arXiv 2404.09656).

    new weights = ``decay`` x own + (1 - ``decay``) x policy. So ``decay`` 0 copies the policy every ``every_steps``
    training steps, and 0.99 after each step is a moving average.

    Args:
        every_steps: after every so many training steps.
        decay: share of its own weights that the role keeps, in [0, 1).
    """

    def __init__(self, *, every_steps: int, decay: float = 0.0) -> None:
        if every_steps < 1:
            raise ValueError(f"every_steps must be >= 1, got {every_steps}; leave refresh out for a fixed model")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}; leave refresh out for a fixed model")
        self.every_steps = every_steps
        self.decay = decay

    def is_due(self, step: int) -> bool:
        """Whether the role is refreshed after ``step`` training steps."""
        return step % self.every_steps == 0
