"""Rejections: groups that do not go to training, and when there have been too many of them."""

from __future__ import annotations

from collections import Counter

ADVICE = {
    "failed": "mend what makes the episodes fail",
    "long_prompt": "leave long prompts out, lower max_new_tokens or take a model of a longer context",
    "dropped": "the workflow returned None for every sample: mend it",
    "partial": "mend what loses some samples of each group, or train on the others (rollout.partial_groups: train)",
    "rollout_admit": "mend the callback that vetoes with this hook",
    "group_ready": "mend the callback that vetoes with this hook",
}


class Rejections:
    """Counts rejected groups by reason: those in a row, and those since the start.

    Args:
        limit: so many in a row are too many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: Counter[str] = Counter()
        self._since_start: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._unscored_in_a_row = 0
        self._last_unscored = ""

    @property
    def num_in_a_row(self) -> int:
        return self._in_a_row.total()

    def add(self, reason: str, *, detail: str = "", unscored: str = "") -> None:
        """Count a group.

        Args:
            detail: what happened, for messages.
            unscored: what became of the reward of one of its samples.
        """
        self._in_a_row[reason] += 1
        self._since_start[reason] += 1
        self._last[reason] = detail
        if unscored:
            self._unscored_in_a_row += 1
            self._last_unscored = unscored

    def note_accepted(self) -> None:
        """A group was accepted. It may still turn out stale: only a batch that is consumed ends a row of those."""
        self._in_a_row = Counter(stale=self._in_a_row["stale"])
        self._unscored_in_a_row = 0

    def note_consumed(self) -> None:
        """A batch was consumed."""
        self._in_a_row.clear()
        self._unscored_in_a_row = 0

    def too_many(self) -> str:
        """Why the run is to end, with reasons and the way out; empty while there are few enough."""
        if self.num_in_a_row < self._limit:
            return ""
        return (
            f"the last {self.num_in_a_row} groups were all rejected ({self._reasons(self._in_a_row)}), so training "
            f"would wait for ever; {self._advice(self._in_a_row)}, or raise rollout.max_rejected_groups"
        )

    def nothing_left(self) -> str:
        """Why a run whose data ended trained on nothing."""
        return (
            f"the data ended before anything could be trained on: all {self._since_start.total()} groups were rejected "
            f"({self._reasons(self._since_start)}); {self._advice(self._since_start)}"
        )

    def _reasons(self, counts: Counter[str]) -> str:
        listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common() if count)
        if self._unscored_in_a_row:
            return f"{listed}; {self._unscored_in_a_row} of them unscored; last: {self._last_unscored}"
        detail = self._last.get(counts.most_common(1)[0][0]) if counts else ""
        return f"{listed}; last: {detail}" if detail else listed

    def _advice(self, counts: Counter[str]) -> str:
        if self._unscored_in_a_row and 2 * self._unscored_in_a_row >= counts.total():
            return "mend the reward or the rows it cannot score"
        reason = counts.most_common(1)[0][0] if counts else ""
        return ADVICE.get(reason, "make the task easier or harder, relax the filters")
