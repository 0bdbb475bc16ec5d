"""Admission: which prompts run, which groups are ready, and when a step has what it waits for.

Lives on the event loop alone, so it needs no locks; ``RolloutLoop`` is its face for the training thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from areal_lit.contracts.data import Source
from areal_lit.contracts.reward import Reward
from areal_lit.contracts.workflow import Workflow
from areal_lit.prompts import PromptStream
from areal_lit.rollout.episodes import EpisodeServices, GroupPlan
from areal_lit.rollout.failure_budget import FailureBudget
from areal_lit.rollout.groups import FinishedGroup, GroupRunner
from areal_lit.rollout.metrics import RolloutCounters
from areal_lit.rollout.ready import ReadyGroups
from areal_lit.rollout.rejections import Rejections
from areal_lit.rollout.settings import Rollout
from areal_lit.rollout.verdict import Verdict, is_unscored
from areal_lit.staleness import capacity
from areal_lit.types import Group, Prompt, Sampling

logger = logging.getLogger(__name__)


class Admission:
    """Admits prompts while there is capacity, files finished groups, and hands them to steps.

    Args:
        on_failure: told what is to end the run.
    """

    def __init__(
        self, settings: Rollout, *, stream: PromptStream, sources: Mapping[str, Source], services: EpisodeServices,
        workflow: Workflow, reward: Reward | None, runner: GroupRunner, verdict: Verdict, deterministic: bool,
        keep_finished: Callable[[], bool], on_failure: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._stream = stream
        self._sources = sources
        self._services = services
        self._workflow = workflow
        self._reward = reward
        self._runner = runner
        self._verdict = verdict
        self._deterministic = deterministic
        self._keep_finished = keep_finished
        self._on_failure = on_failure
        self._budget = FailureBudget(settings.failure_budget)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, Prompt] = {}
        self._running_since: dict[int, float] = {}
        self._ready = ReadyGroups(settings.max_staleness)
        self._rejections = Rejections(settings.rejection_limit)
        self._ordinal = itertools.count()
        self._waiter: asyncio.Future[None] | None = None
        self._has_failed = False
        self._has_told_too_long = False
        self.is_interrupted = False
        self.is_open = False
        self.num_consumed = 0
        self.num_steps = 0
        self.taken: list[Group] = []
        self.counters = RolloutCounters()
        self.finished: deque[Group] = deque()

    async def take(self, step: int) -> list[Group]:
        """The groups of ``step``; fewer, or none, at the end of the data; none after ``interrupt``.

        Waits for as many ready groups as the step takes, and in deterministic mode for all that run. Raises
        RuntimeError when none can come any more, and when the data ended and no group of it could be trained on.
        """
        self.is_open = True
        self.num_steps = step
        wanted = self._wanted
        while not self.is_interrupted:
            self._drop_stale(step)
            if not self._deterministic or not self._running:
                self.admit()
            enough = len(self._ready) >= wanted
            if not self._running or (enough and not self._deterministic):
                if enough or self._stream.is_finished:
                    if not self._ready and not self.num_consumed:
                        raise RuntimeError(self._rejections.nothing_left())
                    return self._consume(min(wanted, len(self._ready)), step)
                self._raise_closed(step)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return []

    def take_back(self) -> None:
        """What the last ``take`` consumed was not trained on: its prompts are pending again."""
        self._stream.push_back(group.prompt for group in self.taken)
        self.num_consumed -= len(self.taken)
        self.num_steps -= bool(self.taken)
        self.taken = []

    def interrupt(self) -> None:
        """No step is begun any more. What is ready or running stays pending, for a checkpoint."""
        self.is_interrupted = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def admit(self) -> None:
        """Start a group per free place; none after a failure, the run is ending."""
        room = 0 if self._has_failed else self._capacity()
        while room > 0 and (prompt := self._stream.next()) is not None:
            self._running[prompt.prompt_id] = prompt  # before a hook is asked: a prompt it fails on stays pending
            if not self._verdict.admits(prompt):
                del self._running[prompt.prompt_id]
                self._reject("rollout_admit")
                self._stream.outcomes.add(prompt, ())
                continue
            room -= 1
            task = asyncio.get_running_loop().create_task(self._run(prompt))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def plan(
        self, prompt: Prompt, source: Source, *, samples: int, sampling: Sampling, is_eval: bool = False
    ) -> GroupPlan:
        """How a prompt is rolled out, under a name that no other group of the run has."""
        return GroupPlan(
            prompt=prompt, name=f"{'eval-' if is_eval else ''}{prompt.prompt_id}.{next(self._ordinal)}",
            workflow=source.workflow or self._workflow, reward=source.reward or self._reward, sampling=sampling,
            samples=samples, is_eval=is_eval, services=self._services,
        )  # fmt: skip

    def pending(self) -> list[Prompt]:
        """Prompts in flight or ready, in order of their ids."""
        prompts = [*self._running.values(), *(ready.group.prompt for ready in self._ready)]
        return sorted(prompts, key=lambda prompt: prompt.prompt_id)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def budget_used(self) -> float:
        """Share of the failure budget that is spent."""
        return self._budget.used(len(self._running) * self._settings.samples_per_group)

    def missing(self) -> str:
        """What a step still waits for, for people; an approximate view from any thread."""
        wanted = self._wanted
        since = list(self._running_since.values())
        eldest = f"; {len(since)} running, the oldest for {time.monotonic() - since[0]:.0f} s" if since else ""
        return f"{max(0, wanted - len(self._ready))} of {wanted} groups{eldest}"

    def describe(self) -> str:
        """Where the rollouts stand, for error messages; an approximate view from any thread."""
        running = list(self._running.values())
        eldest = f" (the eldest: prompt {running[0].prompt_id} of {running[0].source})" if running else ""
        return (
            f"{len(self._ready)} groups are ready, {len(running)} running{eldest}, "
            f"{self._rejections.num_in_a_row} were rejected in a row, {self.num_consumed} consumed so far; "
            f"the engine holds version {self._services.version}"
        )

    async def _run(self, prompt: Prompt) -> None:
        self._running_since[prompt.prompt_id] = time.monotonic()
        source = self._sources[prompt.source]
        sampling = self._settings.sampling_at(self._services.version, source.sampling or self._settings.sampling)
        plan = self.plan(prompt, source, samples=self._settings.samples_per_group, sampling=sampling)
        finished = await self._runner.run(plan)
        if not self._file(finished, plan):
            self._stream.outcomes.add(prompt, finished.group.rewards)
        del self._running[prompt.prompt_id], self._running_since[prompt.prompt_id]
        if self._has_failed:
            return
        if not self._deterministic:
            self.admit()
        self._wake()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """An exception in a group's task ends the run."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._has_failed = True
            self._on_failure(error)

    def _wake(self) -> None:
        """Unblock ``take`` when it can go on: once per batch, not per group."""
        enough = len(self._ready) >= self._wanted and not self._deterministic
        if self._waiter is not None and not self._waiter.done() and (enough or not self._running):
            self._waiter.set_result(None)

    def _consume(self, count: int, step: int) -> list[Group]:
        taken = self._ready.take(count, by_id=self._deterministic)
        self.num_consumed += count
        self.num_steps += bool(count)
        self._rejections.note_consumed()
        self.counters.num_stale_kept += sum(self._ready.is_stale(ready, step) for ready in taken)
        if self._settings.length_warmup is not None:
            self.counters.budgets += [ready.max_new_tokens for ready in taken]
        self.taken = [ready.group for ready in taken]
        for group in self.taken:
            self._stream.outcomes.add(group.prompt, group.rewards)
        self._stream.outcomes.close_step()
        return self.taken

    def _drop_stale(self, step: int) -> None:
        """Ready groups too old for this step give their prompts back, to be rolled out again."""
        if self._settings.stale_groups == "keep":
            return
        stale = self._ready.take_stale(step)
        self._stream.push_back(ready.group.prompt for ready in stale)
        for _ in stale:
            self._reject("stale")

    @property
    def _wanted(self) -> int:
        """Groups of the next step."""
        return self._settings.groups_at(self.num_steps)

    def _capacity(self) -> int:
        # of steps consumed, not of groups: a run resumed with steps of another size goes on at the same step
        accepted = self._settings.groups_before(self.num_steps) + len(self._ready)
        return capacity(
            version=self._services.version, accepted=accepted, running=len(self._running),
            groups_before=self._settings.groups_before, max_staleness=self._settings.max_staleness,
            max_concurrent=self._settings.concurrency,
        )  # fmt: skip

    def _file(self, finished: FinishedGroup, plan: GroupPlan) -> bool:
        """Count a group and file it as ready or rejected; whether it is ready.

        What this raises ends the run, its prompt still pending.
        """
        counters, group = self.counters, finished.group
        needs_reward = plan.reward is not None
        counters.num_finished += 1
        counters.num_retries += finished.num_retries
        counters.num_failed += len(finished.failures)
        counters.num_dropped += finished.num_dropped
        if self._keep_finished():
            self.finished.append(group)
        self._spend(finished)
        if finished.too_long:
            self._reject_too_long(finished.too_long)
        elif finished.is_dropped:
            self._reject("dropped")
        elif objection := self._verdict.objection(group, needs_reward=needs_reward):
            unscored = [t for t in group.trajectories if is_unscored(t, needs_reward=needs_reward)]
            self._reject(
                objection, detail=finished.failures[-1] if finished.failures else "",
                unscored=unscored[-1].unscored or "without a reason" if unscored else "",
            )  # fmt: skip
        else:
            self._rejections.note_accepted()
            self._ready.add(group, max_new_tokens=plan.sampling.max_new_tokens)
            return True
        return False

    def _spend(self, finished: FinishedGroup) -> None:
        samples = self._settings.samples_per_group
        self._budget.record(len(finished.failures), samples)
        num_others = len(self._running) - 1
        if finished.failures and (verdict := self._budget.exceeded(num_others * samples)):
            raise RuntimeError(
                f"{verdict} (rollout.failure_budget); the last: {finished.failures[-1]}"
            ) from finished.last_error

    def _reject_too_long(self, reason: str) -> None:
        if not self._has_told_too_long:
            self._has_told_too_long = True
            logger.warning("a prompt was dropped: %s; later ones are counted in rollout/rejected/long_prompt", reason)
        self._reject("long_prompt", detail=reason)

    def _reject(self, reason: str, *, detail: str = "", unscored: str = "") -> None:
        """Count a rejected group; raise RuntimeError when it is one too many."""
        self.counters.rejected[reason] += 1
        self._rejections.add(reason, detail=detail, unscored=unscored)
        if not self._has_failed and (verdict := self._rejections.too_many()):
            self._has_failed = True  # what is still in flight has nothing to add
            raise RuntimeError(verdict)

    def _raise_closed(self, step: int) -> None:
        raise RuntimeError(
            f"no group can be admitted for step {step} under rollout.max_staleness {self._settings.max_staleness}: "
            f"{self.describe()}; sync weights more often or raise max_staleness"
        )
