"""Staleness: drop groups that took too many versions of the weights to complete."""

from __future__ import annotations

from areal_lit.contracts.filter import Filter
from areal_lit.types import Group


class Staleness(Filter):
    """Reject groups whose oldest token is more than ``max_versions`` versions older than the weights at completion.

    That is judged once, when the group is complete: it hits stragglers and episodes that went on through many weight
    updates, however soon a step would take them. ``rollout.max_staleness`` is judged later and by another clock: it
    bounds the age at the step that trains on the group, waiting in the queue included, and how far rollouts may run
    ahead at all. So ``max_versions`` is meaningful where it is smaller than ``rollout.max_staleness``, or where
    ``rollout.stale_groups`` is ``keep``.

    Args:
        max_versions: so many versions behind are not too old; 0 takes only groups of the weights that are served.
    """

    def __init__(self, *, max_versions: int) -> None:
        if max_versions < 0:
            raise ValueError(f"max_versions must be >= 0, got {max_versions}")
        self.max_versions = max_versions

    def accept(self, group: Group) -> bool:
        """Whether the group is young enough; one without generated tokens has no age."""
        age = group.age
        return age is None or age <= self.max_versions
