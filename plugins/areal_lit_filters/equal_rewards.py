"""Equal rewards: drop groups that a group-relative advantage learns nothing from."""

from __future__ import annotations

from areal_lit.contracts.filter import Filter
from areal_lit.types import Group


class EqualRewards(Filter):
    """Reject groups whose rewards are all equal (DAPO's dynamic sampling, arXiv 2503.14476).

    Args:
        tolerance: rewards this close count as equal.
    """

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be >= 0, got {tolerance}")
        self.tolerance = tolerance

    def accept(self, group: Group) -> bool:
        """Whether the rewards of the scored members spread; a single one does not."""
        rewards = group.rewards
        return len(rewards) > 1 and max(rewards) - min(rewards) > self.tolerance
