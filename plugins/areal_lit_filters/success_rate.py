"""Success rate: keep prompts that are neither too easy nor too hard."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from areal_lit.contracts.filter import Filter
from areal_lit.types import Group
from areal_lit.validation import unscored_sources

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class SuccessRate(Filter):
    """Accept groups whose share of successful samples lies within [low, high].

    Args:
        low: smallest share of scored samples that succeed.
        high: largest share of scored samples that succeed.
        threshold: a sample with at least this reward succeeded.
    """

    def __init__(self, *, low: float = 0.1, high: float = 0.9, threshold: float = 0.5) -> None:
        if not 0 <= low <= high <= 1:
            raise ValueError(f"low and high must satisfy 0 <= low <= high <= 1, got {low} and {high}")
        if not math.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, got {threshold}; no reward reaches any other")
        self.low = low
        self.high = high
        self.threshold = threshold

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if names := unscored_sources(trainer):
            yield f"success_rate judges rewards, and nothing scores {', '.join(names)}; name a reward, or remove it"

    def accept(self, group: Group) -> bool:
        """Whether the success rate is within bounds; a group without scored samples is not."""
        rewards = group.rewards
        if not rewards:
            return False
        rate = sum(reward >= self.threshold for reward in rewards) / len(rewards)
        return self.low <= rate <= self.high
