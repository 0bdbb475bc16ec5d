"""When failing episodes are no longer bad luck."""

from __future__ import annotations

from collections import deque


class FailureBudget:
    """Counts episodes that failed for good, over the most recent groups.

    Episodes still running count as good, so that prompts which fail at once do not end a run whose other episodes
    merely take longer. One prompt that always fails never exhausts the budget.

    Args:
        share: of recent episodes that may fail.
        num_groups: how many finished groups are looked back on.
        min_failed_groups: this many groups must contain failures first.
    """

    def __init__(self, share: float, *, num_groups: int = 100, min_failed_groups: int = 3) -> None:
        self.share = share
        self.min_failed_groups = min_failed_groups
        self._groups: deque[tuple[int, int]] = deque(maxlen=num_groups)

    def record(self, failed: int, episodes: int) -> None:
        """A group finished with ``failed`` of its ``episodes`` lost."""
        self._groups.append((failed, episodes))

    def used(self, running_episodes: int) -> float:
        """How much of the budget is used up, as a share of it; at most 1 unless few groups failed so far."""
        failed = sum(f for f, _ in self._groups)
        allowed = self.share * (sum(n for _, n in self._groups) + running_episodes)
        return failed / allowed if allowed else float(failed > 0)

    def exceeded(self, running_episodes: int) -> str:
        """What is wrong, for an error message; empty while the budget holds."""
        failed = sum(f for f, _ in self._groups)
        episodes = sum(n for _, n in self._groups)
        if sum(f > 0 for f, _ in self._groups) < self.min_failed_groups:
            return ""
        if failed <= self.share * (episodes + running_episodes):
            return ""
        return (
            f"{failed} of the last {episodes} episodes failed for good, more than the budget of {self.share:g} of them"
        )
