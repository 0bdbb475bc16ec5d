"""Equal rewards: drop groups that a group-relative advantage learns nothing from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from areal_lit.contracts.filter import Filter
from areal_lit.types import Group
from areal_lit.validation import unscored_sources

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class EqualRewards(Filter):
    """Reject groups whose rewards are all equal (DAPO's dynamic sampling, arXiv 2503.14476).

    Rewards of turns and steps are compared with each other too: where they differ, the group has something to teach.

    Args:
        tolerance: rewards this close count as equal.
    """

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance must be finite and >= 0, got {tolerance}")
        self.tolerance = tolerance

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if names := unscored_sources(trainer):
            yield f"equal_rewards compares rewards, and nothing scores {', '.join(names)}; name a reward, or remove it"

    def accept(self, group: Group) -> bool:
        """Whether rewards of the scored members, or of their turns and steps, spread; a single one does not."""
        scored = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
        turns = [reward for t in scored for reward in (*t.turn_rewards, *(step.value for step in t.step_scores))]
        return self._spread(group.rewards) or self._spread(turns)

    def _spread(self, rewards: Sequence[float]) -> bool:
        return len(rewards) > 1 and max(rewards) - min(rewards) > self.tolerance
