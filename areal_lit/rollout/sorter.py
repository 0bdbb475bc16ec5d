"""Sorter: what becomes of finished groups. They are ready for a step, or rejected, and counted either way.

Lives on the event loop alone, so it needs no locks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from areal_lit.rollout.failure_budget import FailureBudget
from areal_lit.rollout.groups import FinishedGroup
from areal_lit.rollout.metrics import RolloutCounters
from areal_lit.rollout.plans import GroupPlan
from areal_lit.rollout.ready import ReadyGroups
from areal_lit.rollout.rejections import Rejections
from areal_lit.rollout.settings import Rollout
from areal_lit.rollout.verdict import Verdict, is_unscored
from areal_lit.types import Group, Metric

logger = logging.getLogger(__name__)


class Sorter:
    """Keeps ready groups until a step takes them. What its methods raise is to end the run.

    Args:
        keep_finished: whether all groups are kept in ``finished``, rejected ones too.
    """

    def __init__(self, settings: Rollout, *, verdict: Verdict, keep_finished: Callable[[], bool]) -> None:
        self._settings = settings
        self._verdict = verdict
        self._keep_finished = keep_finished
        self._budget = FailureBudget(settings.failure_budget)
        self._counters = RolloutCounters()
        self._has_told_too_long = False
        self.ready = ReadyGroups(settings.max_staleness)
        self.rejections = Rejections(settings.rejection_limit)
        self.finished: deque[Group] = deque()
        self.has_failed = False
        """The run is ending: what is still in flight has nothing to add."""

    def sort(self, finished: FinishedGroup, plan: GroupPlan, *, num_others: int) -> bool:
        """Count a group and file it as ready or rejected; whether it is ready.

        Args:
            num_others: groups that are running beside it.
        """
        group = finished.group
        self._counters.add(finished)
        if self._keep_finished():
            self.finished.append(group)
        self._spend(finished, num_others)
        needs_reward = plan.reward is not None
        if finished.too_long:
            self._reject_too_long(finished.too_long)
        elif finished.is_dropped:
            self.reject("dropped")
        elif objection := self._verdict.objection(group, needs_reward=needs_reward):
            unscored = [t for t in group.trajectories if is_unscored(t, needs_reward=needs_reward)]
            self.reject(
                objection, detail=finished.failures[-1] if finished.failures else "",
                unscored=unscored[-1].unscored or "without a reason" if unscored else "",
            )  # fmt: skip
        else:
            self.rejections.note_accepted()
            self.ready.add(group, max_new_tokens=plan.sampling.max_new_tokens)
            return True
        return False

    def reject(self, reason: str, *, detail: str = "", unscored: str = "") -> None:
        """Count a rejected group; raise RuntimeError when it is one too many."""
        self._counters.rejected[reason] += 1
        self.rejections.add(reason, detail=detail, unscored=unscored)
        if not self.has_failed and (verdict := self.rejections.too_many()):
            self.has_failed = True
            raise RuntimeError(verdict)

    def consume(self, count: int, step: int, *, by_id: bool) -> list[Group]:
        """Take ready groups for a step, in the order in which they came or of prompt ids."""
        taken = self.ready.take(count, by_id=by_id)
        self.rejections.note_consumed()
        self._counters.num_stale_kept += sum(self.ready.is_stale(ready, step) for ready in taken)
        if self._settings.length_warmup is not None:
            self._counters.budgets += [ready.max_new_tokens for ready in taken]
        return [ready.group for ready in taken]

    def metrics(self, *, num_running: int) -> list[Metric]:
        """What was counted since the last call, and how things stand with so many groups running."""
        used = self._budget.used(num_running * self._settings.samples_per_group)
        return self._counters.take(running=num_running, ready=len(self.ready), budget_used=used)

    def _spend(self, finished: FinishedGroup, num_others: int) -> None:
        samples = self._settings.samples_per_group
        self._budget.record(len(finished.failures), samples)
        if finished.failures and (verdict := self._budget.exceeded(num_others * samples)):
            raise RuntimeError(
                f"{verdict} (rollout.failure_budget); the last: {finished.failures[-1]}"
            ) from finished.last_error

    def _reject_too_long(self, reason: str) -> None:
        if not self._has_told_too_long:
            self._has_told_too_long = True
            logger.warning("a prompt was dropped: %s; later ones are counted in rollout/rejected/long_prompt", reason)
        self.reject("long_prompt", detail=reason)
