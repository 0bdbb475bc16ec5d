"""Rewarding: trajectories in, scored trajectories out, whatever the reward does.

``def score`` runs in a pool of processes that can be killed, ``async def score`` on the event loop. A reward that
cannot be had is never a zero: it is tried again, then dropped or raised, and counted by the class of its reason.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

from areal_lit.contracts.reward import GroupReward, Reward
from areal_lit.logs import LogPipe, Logs
from areal_lit.rewarding.pool import START_TIMEOUT_S, Job, RewardPool
from areal_lit.rewarding.processes import ProcessWorker, ThreadWorker, Worker, pack
from areal_lit.rewarding.worker import Item, Outcome, describe, judge_of, set_up
from areal_lit.sizes import MAX_PROCESSES, require_size
from areal_lit.text import TextCodec
from areal_lit.types import Metric, Trajectory

logger = logging.getLogger(__name__)

UNSCORED_KINDS = ("unscored", "error", "invalid", "timeout", "crash")


class RewardError(RuntimeError):
    """A reward could not be had and the recipe says to stop, or no reward can be had any more."""


@final
@dataclass(frozen=True, kw_only=True)
class Rewarding:
    """How rewards are computed, and what happens when one cannot be.

    Args:
        num_workers: processes that score; a hung one is killed and replaced.
        timeout_s: longest execution of one call; time in the queue does not count.
        max_attempts: of one call, the first included.
        on_failure: drop (the sample is left out of training and counted) or raise (the run ends).
        batch_size: most calls that are sent to a worker at once.
        max_kills_in_row: so many calls that hang or end their worker, with no other answer between them, end the run.
    """

    num_workers: int = 2
    timeout_s: float = 10.0
    max_attempts: int = 2
    on_failure: Literal["drop", "raise"] = "drop"
    batch_size: int = 64
    max_kills_in_row: int = 32

    def __post_init__(self) -> None:
        require_size("rewarding.num_workers", self.num_workers, least=1, most=MAX_PROCESSES)
        for name in ("max_attempts", "batch_size", "max_kills_in_row"):
            require_size(f"rewarding.{name}", getattr(self, name), least=1)
        if not self.timeout_s > 0:
            raise ValueError(f"rewarding.timeout_s must be > 0, got {self.timeout_s}")
        if self.on_failure not in ("drop", "raise"):
            raise ValueError(f"rewarding.on_failure must be drop or raise, got {self.on_failure!r}")


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
        self._lock = threading.Lock()
        self._counts: dict[str, float] = defaultdict(float)
        self._num_queued = 0
        self._hung_in_row: dict[str, int] = defaultdict(int)
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the workers in the background. Raises ValueError for a reward that cannot be sent to them."""
        set_up(self._async, self._codec)
        if not self._sync:
            return
        payload = b"" if self._in_process else pack(self._sync, self._codec)
        if self._in_process:
            set_up(self._sync, self._codec)
        else:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            self._log = LogPipe(self._logs.open(self._log_dir / "reward.log"))
        log = self._log

        def start_worker() -> Worker:
            if log is None:
                return ThreadWorker(rewards=self._sync)
            return ProcessWorker(
                payload=payload, log=log.writer, num_threads=self._num_threads, fingerprint=self._fingerprint
            )

        self._pool = RewardPool(
            start_worker=start_worker,
            num_workers=1 if self._in_process else self._settings.num_workers,
            timeout_s=self._settings.timeout_s,
            max_attempts=self._settings.max_attempts,
            batch_size=self._settings.batch_size,
            max_kills_in_row=self._settings.max_kills_in_row,
            deliver=self._deliver,
            count=self._count,
            log_path=log.path if log else None,
        )
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
        self._count_max("queue", self._num_queued)
        try:
            if key in self._async:
                outcomes = list(await asyncio.gather(*(self._score_async(key, reward, each) for each in trajectories)))
            else:
                outcomes = await self._score_in_pool(key, reward, trajectories)
        finally:
            self._num_queued -= len(trajectories)
        return [self._finish(key, *pair) for pair in zip(trajectories, outcomes, strict=True)]

    def metrics(self) -> list[Metric]:
        """What was counted since the last call of this method."""
        with self._lock:
            counts, self._counts = self._counts, defaultdict(float)
        calls = counts.pop("calls", 0.0)
        sums = ["unscored", *(f"unscored_{kind}" for kind in UNSCORED_KINDS), "retries", "killed_workers"]
        return [
            *(Metric(name=f"reward/{name}", sum=counts.get(name, 0.0), reduction="sum") for name in sums),
            Metric(name="reward/seconds", sum=counts.get("seconds", 0.0), count=calls),
            Metric(name="reward/queue", sum=counts.get("queue", 0.0), reduction="max"),
        ]

    async def _score_async(self, key: str, reward: Reward, trajectory: Trajectory) -> Outcome:
        outcome = Outcome()
        for attempt in range(1, self._settings.max_attempts + 1):
            if attempt > 1:
                self._count("retries", 1)
            begun = time.monotonic()
            try:
                score = await asyncio.wait_for(reward.score(trajectory), self._settings.timeout_s)  # type: ignore[arg-type]
                outcome = judge_of(trajectory, score)
            except TimeoutError:
                outcome = Outcome(kind="timeout", reason=f"no result within {self._settings.timeout_s} s")
            # Rewards are the user's code: whatever they raise leaves this call unscored and counted.
            except Exception as error:  # noqa: BLE001
                outcome = Outcome(kind="error", reason=describe(error))
            self._hung_in_row[key] = self._hung_in_row[key] + 1 if outcome.kind == "timeout" else 0
            if self._hung_in_row[key] >= self._settings.max_kills_in_row:
                raise RewardError(
                    f"reward {key!r} has hung {self._hung_in_row[key]} times in a row ({outcome.reason}); mend it, or "
                    "raise rewarding.timeout_s or rewarding.max_kills_in_row"
                )
            self._count("seconds", time.monotonic() - begun)
            self._count("calls", 1)
            if not outcome.kind:
                break
        return outcome

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
        self._count("unscored", 1)
        self._count(f"unscored_{outcome.kind}", 1)
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

    def _count(self, name: str, amount: float) -> None:
        with self._lock:
            self._counts[name] += amount

    def _count_max(self, name: str, value: float) -> None:
        with self._lock:
            self._counts[name] = max(self._counts[name], value)
