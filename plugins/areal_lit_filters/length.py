"""Length: drop groups whose completions are too long."""

from __future__ import annotations

from typing import Literal

from areal_lit.contracts.filter import Filter
from areal_lit.types import Group


class Length(Filter):
    """Reject groups that generated more than ``max_tokens``, in any sample or on average.

    Whole groups are dropped, so that what is trained on stays compared with all samples of its prompt.

    Args:
        max_tokens: generated tokens of a trajectory that are not too many.
        over: judge ``any`` trajectory of the group, or their ``mean``.
    """

    def __init__(self, *, max_tokens: int, over: Literal["any", "mean"] = "any") -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
        if over not in ("any", "mean"):
            raise ValueError(f"over must be any or mean, got {over!r}")
        self.max_tokens = max_tokens
        self.over = over

    def accept(self, group: Group) -> bool:
        """Whether the group is short enough; unscored members were generated too and count."""
        lengths = [trajectory.num_generated for trajectory in group.trajectories]
        if not lengths:
            return True
        return (max(lengths) if self.over == "any" else sum(lengths) / len(lengths)) <= self.max_tokens
