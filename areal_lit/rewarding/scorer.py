"""Scorer: trajectories in, scored trajectories out, whatever the reward does.

``def score`` runs in a pool of processes that can be killed, ``async def score`` on the event loop. A reward that
cannot be had is never a zero: it is tried again, then dropped or raised, and counted by the class of its reason.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from areal_lit.contracts.reward import GroupReward, Reward
from areal_lit.logs import LogPipe, Logs
from areal_lit.rewarding.async_rewards import AsyncRewards
from areal_lit.rewarding.calls import Item, Outcome, RewardError, set_up
from areal_lit.rewarding.metrics import RewardCounters
from areal_lit.rewarding.pool import START_TIMEOUT_S, RewardPool
from areal_lit.rewarding.processes import ProcessWorker, ThreadWorker, Worker, pack
from areal_lit.rewarding.settings import Rewarding
from areal_lit.rewarding.slot import Job
from areal_lit.text import TextCodec
from areal_lit.types import Metric, Trajectory

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pending:
    """One ``score`` call: outcomes by trajectory, and the future that resolves when all are there."""

    future: asyncio.Future[None]
    outcomes: list[Outcome | None]
    num_missing: int


class Scorer:
    """Scores trajectories for as long as a run lasts.

    Args:
        settings: the recipe's ``rewarding`` section.
        rewards: all rewards of the run by key; they are sent to the workers once, at their start.
        in_process: score in one thread of this process (inline launcher); a hung call is then abandoned, not killed.
        log_dir: where ``reward.log`` takes what rewards print.
        logs: how much of that is kept.
        codec: the policy's, for rewards that look at tokens.
        num_threads: of numerical libraries in each worker.
        fingerprint: of the run's components, which workers must have in the same versions.
    """

    def __init__(
        self,
        settings: Rewarding,
        *,
        rewards: Mapping[str, Reward],
        in_process: bool,
        log_dir: Path,
        logs: Logs,
        codec: TextCodec | None = None,
        num_threads: int = 1,
        fingerprint: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._async = {key: reward for key, reward in rewards.items() if inspect.iscoroutinefunction(reward.score)}
        self._sync = {key: reward for key, reward in rewards.items() if key not in self._async}
        self._keys = {id(reward): key for key, reward in rewards.items()}
        self._in_process = in_process
        self._log_dir = log_dir
        self._logs = logs
        self._codec = codec
        self._num_threads = num_threads
        self._fingerprint = fingerprint or {}
        self._pool: RewardPool | None = None
        self._log: LogPipe | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Job] = []
        self._counters = RewardCounters()
        self._awaited = AsyncRewards(settings, self._counters)
        self._num_queued = 0
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the workers in the background. Raises ValueError for a reward that cannot be sent to them."""
        set_up(self._async, self._codec)
        if not self._sync:
            return
        settings = self._settings
        start_worker: Callable[[], Worker]
        if self._in_process:
            set_up(self._sync, self._codec)
            settings = replace(settings, num_workers=1)
            start_worker = partial(ThreadWorker, rewards=self._sync)
        else:
            payload = pack(self._sync, self._codec)
            self._log_dir.mkdir(parents=True, exist_ok=True)
            self._log = LogPipe(self._logs.open(self._log_dir / "reward.log"))
            start_worker = partial(
                ProcessWorker, payload=payload, log=self._log.writer, num_threads=self._num_threads,
                fingerprint=self._fingerprint,
            )  # fmt: skip
        self._pool = RewardPool(
            settings, start_worker=start_worker, deliver=self._deliver, counters=self._counters,
            log_path=self._log.path if self._log else None,
        )  # fmt: skip
        self._pool.start()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once a worker takes calls. Raises RewardError with the reason when a reward's setup failed."""
        if self._pool is None:
            return
        try:
            self._pool.wait_ready(timeout_s)
        except (RuntimeError, TimeoutError) as error:
            raise RewardError(str(error)) from error

    def stop(self) -> None:
        """End the workers and everything they started; calls still waiting raise RewardError. Bounded in time."""
        try:
            if self._pool is not None:
                self._pool.stop()
        finally:
            self._pool = None
            if self._log is not None:
                self._log.close_writer()
                self._log.join(timeout_s=2.0)
                self._log = None

    async def score(self, reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
        """The same trajectories with ``reward``, its parts, ``step_scores`` and ``metrics``, or with ``unscored``.

        Raises RewardError when a reward cannot be had and ``on_failure`` is ``raise``, or when the pool is gone.
        """
        key = self._keys.get(id(reward))
        if key is None:
            raise ValueError(f"{type(reward).__name__} is not among this run's rewards {sorted(self._keys.values())}")
        if not trajectories:
            return []
        self._num_queued += len(trajectories)
        self._counters.note_queue(self._num_queued)
        try:
            if key in self._async:
                outcomes = await asyncio.gather(*(self._awaited.score(key, reward, each) for each in trajectories))
            else:
                outcomes = await self._score_in_pool(key, reward, trajectories)
        finally:
            self._num_queued -= len(trajectories)
        return [self._finish(key, *pair) for pair in zip(trajectories, outcomes, strict=True)]

    def metrics(self) -> list[Metric]:
        """What was counted since the last call of this method."""
        return self._counters.take()

    async def _score_in_pool(self, key: str, reward: Reward, trajectories: list[Trajectory]) -> list[Outcome]:
        loop = self._loop = asyncio.get_running_loop()
        slim = [each if each.routed_experts is None else replace(each, routed_experts=None) for each in trajectories]
        calls = [tuple(slim)] if isinstance(reward, GroupReward) else [(each,) for each in slim]
        pending = _Pending(loop.create_future(), [None] * len(trajectories), len(trajectories))
        if not self._waiting:
            loop.call_soon(self._submit)
        start = 0
        for call in calls:
            self._waiting.append(Job(item=Item(key, call), owner=(pending, start)))
            start += len(call)
        await pending.future
        return [outcome for outcome in pending.outcomes if outcome is not None]

    def _submit(self) -> None:
        """Hand over all calls of one tick of the event loop, so that they travel in batches."""
        jobs, self._waiting = self._waiting, []
        if self._pool is not None:
            self._pool.submit(jobs)
            return
        outcome = Outcome(kind="stopped", reason="the reward pool is not running")
        self._settle([(job, [outcome] * len(job.item.trajectories)) for job in jobs])

    def _deliver(self, results: list[tuple[Job, list[Outcome]]]) -> None:
        assert self._loop is not None, "results of calls that no event loop made"
        # RuntimeError: the loop is closed, and nobody waits for these results any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, results)

    def _settle(self, results: list[tuple[Job, list[Outcome]]]) -> None:
        for job, outcomes in results:
            pending, start = job.owner
            pending.outcomes[start : start + len(outcomes)] = outcomes
            pending.num_missing -= len(outcomes)
            if pending.num_missing == 0 and not pending.future.done():
                pending.future.set_result(None)

    def _finish(self, key: str, trajectory: Trajectory, outcome: Outcome) -> Trajectory:
        if not outcome.kind:
            changes: dict[str, Any] = {"reward": outcome.value, "unscored": "", "reward_parts": outcome.parts}
            if outcome.steps:
                changes["step_scores"] = outcome.steps
            if outcome.metrics:
                changes["metrics"] = {**trajectory.metrics, **outcome.metrics}
            return replace(trajectory, **changes)
        reason = f"{outcome.kind}: {outcome.reason}"
        if outcome.kind == "stopped":
            raise RewardError(f"reward {key!r} cannot be computed any more: {outcome.reason}")
        self._tell(key, trajectory, outcome.kind, reason)
        self._counters.add_unscored(outcome.kind)
        if self._settings.on_failure == "raise":
            prompt = trajectory.prompt
            raise RewardError(
                f"reward {key!r} has no value for row {prompt.row} of source {prompt.source!r} "
                f"(sample {trajectory.sample}) after {self._settings.max_attempts} attempts: {reason}. "
                "Fix the reward or the row, or set rewarding.on_failure to drop"
            )
        return replace(trajectory, reward=None, unscored=reason, reward_parts={})

    def _tell(self, key: str, trajectory: Trajectory, kind: str, reason: str) -> None:
        """Log the first of each kind per reward; the others are counted only."""
        if (key, kind) in self._told:
            return
        self._told.add((key, kind))
        prompt = trajectory.prompt
        logger.warning(
            "reward %r has no value for row %d of source %r: %s; later ones are counted in reward/unscored_%s",
            key, prompt.row, prompt.source, reason, kind,
        )  # fmt: skip
