"""Admission: which prompts run, and when a step has the groups that it waits for.

Lives on the event loop alone, so it needs no locks; ``RolloutLoop`` is its face for the training thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from areal_lit.prompts import PromptStream
from areal_lit.rollout.groups import GroupRunner
from areal_lit.rollout.plans import EpisodeServices, GroupPlans
from areal_lit.rollout.settings import Rollout
from areal_lit.rollout.sorter import Sorter
from areal_lit.rollout.verdict import Verdict
from areal_lit.staleness import capacity
from areal_lit.types import Group, Prompt


class Admission:
    """Admits prompts while there is capacity, and hands ready groups to steps.

    Args:
        on_failure: told what is to end the run.
    """

    def __init__(
        self, settings: Rollout, *, stream: PromptStream, services: EpisodeServices, plans: GroupPlans,
        runner: GroupRunner, verdict: Verdict, sorter: Sorter, deterministic: bool,
        on_failure: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._stream = stream
        self._services = services
        self._plans = plans
        self._runner = runner
        self._verdict = verdict
        self._sorter = sorter
        self._ready = sorter.ready
        self._deterministic = deterministic
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, Prompt] = {}
        self._running_since: dict[int, float] = {}
        self._waiter: asyncio.Future[None] | None = None
        self.is_interrupted = False
        self.is_open = False
        self.num_consumed = 0
        self.num_steps = 0
        self.taken: list[Group] = []

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
                        raise RuntimeError(self._sorter.rejections.nothing_left())
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
        room = 0 if self._sorter.has_failed else self._capacity()
        while room > 0 and (prompt := self._stream.next()) is not None:
            self._running[prompt.prompt_id] = prompt  # before a hook is asked: a prompt it fails on stays pending
            if not self._verdict.admits(prompt):
                del self._running[prompt.prompt_id]
                self._sorter.reject("rollout_admit")
                self._stream.outcomes.add(prompt, ())
                continue
            room -= 1
            task = asyncio.get_running_loop().create_task(self._run(prompt))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def pending(self) -> list[Prompt]:
        """Prompts in flight or ready, in order of their ids."""
        prompts = [*self._running.values(), *(ready.group.prompt for ready in self._ready)]
        return sorted(prompts, key=lambda prompt: prompt.prompt_id)

    @property
    def num_running(self) -> int:
        return len(self._running)

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
            f"{self._sorter.rejections.num_in_a_row} were rejected in a row, {self.num_consumed} consumed so far; "
            f"the engine holds version {self._services.version}"
        )

    async def _run(self, prompt: Prompt) -> None:
        self._running_since[prompt.prompt_id] = time.monotonic()
        plan = self._plans.training(prompt)
        finished = await self._runner.run(plan)
        if not self._sorter.sort(finished, plan, num_others=len(self._running) - 1):
            self._stream.outcomes.add(prompt, finished.group.rewards)
        del self._running[prompt.prompt_id], self._running_since[prompt.prompt_id]
        if self._sorter.has_failed:
            return
        if not self._deterministic:
            self.admit()
        self._wake()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """An exception in a group's task ends the run."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._sorter.has_failed = True
            self._on_failure(error)

    def _wake(self) -> None:
        """Unblock ``take`` when it can go on: once per batch, not per group."""
        enough = len(self._ready) >= self._wanted and not self._deterministic
        if self._waiter is not None and not self._waiter.done() and (enough or not self._running):
            self._waiter.set_result(None)

    def _consume(self, count: int, step: int) -> list[Group]:
        self.taken = self._sorter.consume(count, step, by_id=self._deterministic)
        self.num_consumed += count
        self.num_steps += bool(count)
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
            self._sorter.reject("stale")

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

    def _raise_closed(self, step: int) -> None:
        raise RuntimeError(
            f"no group can be admitted for step {step} under rollout.max_staleness {self._settings.max_staleness}: "
            f"{self.describe()}; sync weights more often or raise max_staleness"
        )
