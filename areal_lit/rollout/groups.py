"""GroupRunner: one prompt from its first request to a complete, scored group.

Episodes of a group run at once and share their prompt's prefix. One that fails is retried, dropped, or ends the run,
as the ``rollout_error`` hook says; none is ever turned into a reward.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from areal_lit.cancellation import is_cancelled
from areal_lit.rollout.episodes import RolloutEpisode
from areal_lit.rollout.limits import PromptTooLong
from areal_lit.rollout.plans import GroupPlan
from areal_lit.rollout.results import checked
from areal_lit.rollout.settings import Rollout
from areal_lit.types import Group, Trajectory

ENGINE_GRACE_S = 0.5


class FinishedGroup:
    """A group with what was lost on the way. ``failures`` holds a sentence per sample that failed for good.

    ``too_long`` says by how much, when the prompt does not fit the model: that is the row's fault, and no failure.
    """

    __slots__ = ("failures", "group", "last_error", "num_dropped", "num_retries", "too_long")

    def __init__(self) -> None:
        self.group: Group
        self.failures: list[str] = []
        self.last_error: BaseException | None = None
        self.num_dropped = 0
        self.num_retries = 0
        self.too_long = ""

    @property
    def is_dropped(self) -> bool:
        """Whether the workflow chose to return nothing for any sample."""
        return not self.group.trajectories and not self.failures and self.num_dropped > 0


class GroupRunner:
    """Runs groups on the event loop.

    Args:
        hooks: the plugin manager's hooks; ``rollout_error`` is asked.
    """

    def __init__(self, settings: Rollout, hooks: Any) -> None:
        self._settings = settings
        self._hooks = hooks

    async def run(self, plan: GroupPlan) -> FinishedGroup:
        """All episodes of one prompt, scored. Raises only what is to end the run."""
        finished = FinishedGroup()
        episodes = [self._episode(plan, sample, finished) for sample in range(plan.samples)]
        try:
            results = await asyncio.gather(*episodes)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise RuntimeError(
                f"workflow {type(plan.workflow).__name__} cancelled its own task in an episode of row "
                f"{plan.prompt.row} of source {plan.prompt.source!r}; cancel only tasks that the workflow started"
            ) from error
        trajectories = [trajectory for result in results for trajectory in result]
        if plan.reward is not None and trajectories:
            trajectories = await self._score(plan, trajectories)
        finished.group = Group(prompt=plan.prompt, trajectories=tuple(trajectories), version=plan.services.version)
        return finished

    async def _episode(self, plan: GroupPlan, sample: int, finished: FinishedGroup) -> list[Trajectory]:
        """One sample, tried until it succeeds or is given up; empty if dropped."""
        attempt = 1
        while isinstance(outcome := await self._attempt(plan, sample, attempt), BaseException):
            if not await self._should_retry(plan, outcome, attempt):
                return _given_up(plan, sample, outcome, finished)
            finished.num_retries += 1
            attempt += 1
        if outcome:
            return outcome
        finished.num_dropped += 1
        return [_lost(plan, sample, "the workflow dropped the sample")] if plan.is_eval else []

    async def _attempt(self, plan: GroupPlan, sample: int, attempt: int) -> list[Trajectory] | BaseException:
        """What the workflow made of a sample, or how it failed. Raises only what is to end the run."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.episode_timeout_s
        episode = RolloutEpisode(plan, sample=sample, attempt=attempt, deadline=deadline, loop=loop)
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                result = await plan.workflow.run(plan.prompt, episode)
            return checked(result, workflow=type(plan.workflow).__name__, sample=sample, limits=plan.services.limits)
        # a workflow is any code, and neither sys.exit in it nor something cancelled that it awaited is an order to
        # this process; rollout_error decides, failures are counted
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            if episode.fatal is not None:
                raise episode.fatal from None
            return self._timed_out(plan, sample, error) if timeout.expired() else error

    def _timed_out(self, plan: GroupPlan, sample: int, cause: BaseException) -> TimeoutError:
        error = TimeoutError(
            f"sample {sample} of prompt {plan.prompt.prompt_id} ({plan.prompt.source} row {plan.prompt.row}) was not "
            f"through {type(plan.workflow).__name__} after episode_timeout_s = {self._settings.episode_timeout_s:g}"
        )
        error.__cause__ = cause
        return error

    async def _should_retry(self, plan: GroupPlan, error: BaseException, attempt: int) -> bool:
        decision = self._hooks.rollout_error(prompt=plan.prompt, error=error, attempt=attempt)
        if decision == "raise":
            raise error
        if decision not in ("retry", "drop"):
            raise ValueError(f"hook rollout_error must decide 'retry', 'drop' or 'raise', got {decision!r}")
        if isinstance(error, ConnectionError):
            # a dead engine fails every request at once; its watcher is about to say so, with exit code and log
            await asyncio.sleep(ENGINE_GRACE_S * attempt)
        return bool(decision == "retry")

    async def _score(self, plan: GroupPlan, trajectories: list[Trajectory]) -> list[Trajectory]:
        assert plan.reward is not None
        score = plan.services.score
        waiting = [i for i, t in enumerate(trajectories) if t.reward is None and not t.unscored]
        if len(waiting) == len(trajectories):
            return await score(plan.reward, trajectories)
        if waiting:
            scored = await score(plan.reward, [trajectories[i] for i in waiting])
            for i, trajectory in zip(waiting, scored, strict=True):
                trajectories[i] = trajectory
        return trajectories


def _given_up(plan: GroupPlan, sample: int, error: BaseException, finished: FinishedGroup) -> list[Trajectory]:
    """Note a sample that failed for good; an evaluation counts it."""
    reason = f"{type(error).__name__}: {error}"
    finished.last_error = error
    if isinstance(error, PromptTooLong):
        finished.too_long = str(error)
    else:
        finished.failures.append(reason)
    return [_lost(plan, sample, reason)] if plan.is_eval else []


def _lost(plan: GroupPlan, sample: int, reason: str) -> Trajectory:
    """Stands for an evaluation sample that does not exist, so that it is counted and not scored 0."""
    return Trajectory(
        token_ids=np.zeros(0, np.int64), loss_mask=np.zeros(0, np.bool_), logprobs=np.zeros(0, np.float32),
        versions=np.zeros(0, np.int64), prompt=plan.prompt, sample=sample, unscored=reason,
        temperature=plan.sampling.temperature,
    )  # fmt: skip
