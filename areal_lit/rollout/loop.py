"""RolloutLoop: rollouts as the training thread sees them.

    stream --prompt--> admission --> GroupRunner (episodes, scores) --> sorter --> ready --> next_batch
                          ^ capacity (staleness.py)                       | rejected, counted

All of it runs on one event loop with a thread of its own; the training thread only waits for it.
Nothing is rolled out before the first ``next_batch``: by then the engine holds weights.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from areal_lit.activity import Activity
from areal_lit.contracts.data import Source
from areal_lit.contracts.filter import Filter
from areal_lit.contracts.inference import InferenceBackend
from areal_lit.contracts.reward import Reward
from areal_lit.contracts.workflow import Workflow
from areal_lit.prompts import PromptStream
from areal_lit.rollout.admission import Admission
from areal_lit.rollout.event_thread import EventThread
from areal_lit.rollout.groups import GroupRunner
from areal_lit.rollout.limits import Limits
from areal_lit.rollout.metrics import consumed_metrics
from areal_lit.rollout.plans import EpisodeServices, GroupPlans, ScoreFn
from areal_lit.rollout.settings import Rollout
from areal_lit.rollout.sorter import Sorter
from areal_lit.rollout.verdict import Verdict
from areal_lit.text import TextCodec
from areal_lit.types import Group, Metric, Prompt, Sampling

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0


class RolloutLoop:
    """The running rollouts of a run.

    Args:
        stream: of training prompts; the loop is its only reader.
        sources: their own reward, workflow and sampling take precedence over those given here.
        score: gives trajectories their rewards, or says why there is none; what it raises ends the run.
        hooks: the plugin manager's hooks (``pm.hook``), with ``RolloutDefaults`` registered.
        deterministic: admit only when a step waits and nothing runs; order groups by prompt id.
        activity: told what is waited for.
        version: of the weights the engine will hold first.
    """

    def __init__(
        self, settings: Rollout, *, stream: PromptStream, sources: Mapping[str, Source], backend: InferenceBackend,
        codec: TextCodec, workflow: Workflow, score: ScoreFn, reward: Reward | None, filters: Sequence[Filter],
        hooks: Any, seed: int, deterministic: bool, activity: Activity | None = None, version: int = 0,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._stream = stream
        self._thread = EventThread("rollout")
        self._services = EpisodeServices(backend=backend, codec=codec, score=score, seed=seed, version=version)
        self._runner = GroupRunner(settings, hooks)
        self._plans = GroupPlans(settings, sources=sources, services=self._services, workflow=workflow, reward=reward)
        verdict = Verdict(settings, filters=filters, hooks=hooks)
        self._sorter = Sorter(
            settings, verdict=verdict, keep_finished=lambda: bool(hooks.rollout_finish.get_hookimpls())
        )
        self._admission = Admission(
            settings, stream=stream, services=self._services, plans=self._plans, runner=self._runner, verdict=verdict,
            sorter=self._sorter, deterministic=deterministic, on_failure=self._thread.fail,
        )  # fmt: skip
        self._metrics: list[Metric] = []
        self._evaluations: set[asyncio.Future[list[Group]]] = set()
        self._deterministic = deterministic
        self._activity = activity or Activity()

    def start(self) -> None:
        """Start the event loop's thread."""
        # hundreds of thousands of objects of imported libraries would be walked by each full garbage collection, which
        # thousands of episodes in flight provoke: without this, a sample costs half as much again with 4,096 of them
        gc.collect()
        gc.freeze()
        self._thread.start()

    def stop(self) -> None:
        """Cancel what runs, disconnect from the engine and end the thread; idempotent, bounded in time."""
        self._thread.stop(self._services.backend.close)
        gc.unfreeze()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float, what: str) -> T:
        """A coroutine's result, from the event loop. Raises what ``fail`` was given, or TimeoutError with ``what``."""
        with self._activity.during(f"waiting for {what}"):
            return self._thread.run(coroutine, timeout_s=timeout_s, what=what)

    def fail(self, error: BaseException) -> None:
        """End every current and future wait with this error. For any thread."""
        self._thread.fail(error)

    def interrupt(self) -> None:
        """End this and every later wait for a batch or an evaluation, which then has no groups.

        For any thread and signal handlers.
        """
        self._thread.post(self._interrupt)

    def _interrupt(self) -> None:
        self._admission.interrupt()
        for task in self._evaluations:
            task.cancel()

    def limit(self, limits: Limits) -> None:
        """What sequences and answers are held to from the next request on. For any thread."""
        self._services.limits = limits

    def next_batch(self, step: int) -> list[Group] | None:
        """The groups that ``step`` trains on; fewer at the very end of the data, None after it or an ``interrupt``.

        Waits for as many groups as the step takes; unblocked by the last of them, by the end of the data, by
        ``interrupt``, or by ``fail``.
        Raises RuntimeError when no group can come any more: the failure budget is spent, all are rejected, or
        admission is closed at this version.
        """

        async def take() -> tuple[list[Group], list[Metric]]:
            groups = await self._admission.take(step)
            return groups, self._sorter.metrics(num_running=self._admission.num_running)

        self._admission.taken = []  # what was taken before was trained on
        with self._activity.during(lambda: f"waiting for {self._admission.missing()}"):
            groups, counters = self._thread.run(
                take(),
                timeout_s=self._settings.wait_timeout_s,
                what=f"the {self._settings.groups_at(step)} groups of step {step} (rollout.wait_timeout_s)",
                describe=self._admission.describe,
            )
        self._metrics += counters
        self._metrics += consumed_metrics(groups, step, by_source=len(self._stream.source_names) > 1)
        return groups or None

    def set_version(self, version: int) -> None:
        """The engine holds ``version`` now; admission grows with it. Returns at once: later waits come after it."""

        async def note() -> None:
            self._services.version = version
            if self._admission.is_open and not self._deterministic:
                self._admission.admit()

        self._thread.spawn(note())

    def evaluate(
        self, prompts: Sequence[tuple[Prompt, Source]], *, samples: int, sampling: Sampling, timeout_s: float
    ) -> list[Group] | None:
        """A group of ``samples`` trajectories per prompt, in order; never held back by staleness, never filtered.

        An episode that fails for good is a trajectory without tokens that says so in ``unscored``. None after an
        ``interrupt``.
        """
        ended: list[Prompt] = []
        with self._activity.during(lambda: f"waiting for {len(prompts) - len(ended)} of {len(prompts)} prompts"):
            return self._thread.run(
                self._evaluate(prompts, samples, sampling, ended),
                timeout_s=timeout_s,
                what=f"the evaluation of {len(prompts)} prompts (evaluation.timeout_s)",
            )

    def drain_finished(self) -> list[Group]:
        """Groups completed since the last call, rejected ones too; gathered only for ``rollout_finish`` hooks."""
        finished = self._sorter.finished
        return [finished.popleft() for _ in range(len(finished))]

    def metrics(self) -> list[Metric]:
        """``rollout/*`` up to the last ``next_batch``, since the last call."""
        metrics, self._metrics = self._metrics, []
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Position in the data with what is pending, and how many groups and steps were consumed: one consistent cut.

        To be had after a failure too: it depends on nothing that may have failed but this process.
        """

        async def look() -> dict[str, Any]:
            return {
                "stream": self._stream.state_dict(self._admission.pending()),
                "num_consumed": self._admission.num_consumed,
                "num_steps": self._admission.num_steps,
            }

        return self._call(look(), "the rollout state")

    def give_back(self) -> None:
        """What the last ``next_batch`` took, even if it failed then, is pending again; for a last ``state_dict``."""

        async def take_back() -> None:
            self._admission.take_back()

        self._call(take_back(), "groups to be given back")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back ``state_dict`` before the first ``next_batch``: pending prompts run first, under their old ids."""
        assert not self._admission.is_open, "rollouts run already; load before the first next_batch"
        self._stream.load_state_dict(state["stream"])
        self._admission.num_consumed = int(state["num_consumed"])
        self._admission.num_steps = int(state["num_steps"])

    def _call(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        return self._thread.run(
            coroutine, timeout_s=CALL_TIMEOUT_S, what=what, describe=self._admission.describe, despite_failure=True
        )

    async def _evaluate(
        self, prompts: Sequence[tuple[Prompt, Source]], samples: int, sampling: Sampling, ended: list[Prompt]
    ) -> list[Group] | None:
        if self._admission.is_interrupted:
            return None
        places = asyncio.Semaphore(self._settings.concurrency)

        async def run_one(prompt: Prompt, source: Source) -> Group:
            async with places:
                plan = self._plans.evaluation(prompt, source, samples=samples, sampling=sampling)
                group = (await self._runner.run(plan)).group
                ended.append(prompt)
                return group

        evaluation = asyncio.ensure_future(asyncio.gather(*(run_one(prompt, source) for prompt, source in prompts)))
        self._evaluations.add(evaluation)
        try:
            return await evaluation
        except asyncio.CancelledError:
            if self._admission.is_interrupted:
                return None
            raise
        finally:
            self._evaluations.discard(evaluation)
