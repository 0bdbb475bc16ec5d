"""Run: what the loop of a started trainer asks and does in each phase. ``lifecycle`` starts and ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pluggy

from areal_lit.batching import pack, split_minibatches
from areal_lit.evaluation import evaluation_metrics, evaluation_prompts
from areal_lit.hookspecs import PhaseName
from areal_lit.roles import RoleGroup
from areal_lit.run.algorithm_results import prepared, weighed
from areal_lit.run.data import RunData
from areal_lit.run.interrupts import Interrupts
from areal_lit.run.loggers import Loggers
from areal_lit.run.model_columns import with_model_columns
from areal_lit.run.offline import OfflineBatches, encode_row
from areal_lit.run.online import Online
from areal_lit.run.phase_clock import PhaseClock
from areal_lit.run.saving import Saving
from areal_lit.run.teacher import TeacherClient
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group, Metric, Prompt, merge_metrics

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

Status = Literal["finished", "failed", "interrupted"]


class Run:
    """The loop's questions and its work.

    Args:
        path: the run's directory.
        teacher: where it is served instead of living on ranks.
        batches: where a step's groups come from.
        watch: raises when a process of the run died.
    """

    def __init__(
        self, trainer: Trainer, *, path: Path, data: RunData, roles: Mapping[str, RoleGroup],
        teacher: TeacherClient | None, batches: OfflineBatches | Online, saving: Saving, loggers: Loggers,
        hook: pluggy.HookRelay, clock: PhaseClock, interrupts: Interrupts,
        watch: Callable[[], None],
    ) -> None:  # fmt: skip
        self.trainer = trainer
        self.path = path
        self.batches = batches
        self._roles = roles
        self._models: Mapping[str, RoleGroup | TeacherClient] = {**roles, **({"teacher": teacher} if teacher else {})}
        self._data = data
        self._saving = saving
        self._loggers = loggers
        self._hook = hook
        self._clock = clock
        self._interrupts = interrupts
        self._watch = watch
        self._metrics: list[Metric] = []
        self._counts: Sequence[Metric] = ()
        self._version = -1
        self._evaluated_step = -1
        self._evaluation: Mapping[str, float] = {}
        self._has_taken = False
        self._is_training = False

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether the last step was taken, or the run was asked to stop."""
        return self._interrupts.requested or self._is_at_last_step

    @property
    def status(self) -> Status:
        """How a run ends that did not fail."""
        return "interrupted" if self._interrupts.requested and not self._is_at_last_step else "finished"

    @property
    def is_engine_behind(self) -> bool:
        """Whether the engine would answer with weights of an earlier step."""
        return not self.trainer.algorithm.offline and self._version != self.trainer.step

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Enter every context manager that plugins put around this phase."""
        self._watch()
        self._saving.check()
        with ExitStack() as stack:
            for manager in self._hook.phase(trainer=self.trainer, name=name, step=self.trainer.step):
                stack.enter_context(manager)
            yield

    def should(self, what: Literal["sync_weights", "evaluate", "checkpoint"]) -> bool:
        """What the policy hooks decide after ``trainer.step`` steps."""
        if what == "sync_weights" and self.trainer.algorithm.offline:
            return False
        return bool(getattr(self._hook, f"should_{what}")(trainer=self.trainer, step=self.trainer.step))

    # --- work ------------------------------------------------------------------------------------

    def next_batch(self) -> list[Group] | None:
        """The groups of the next step; None when the data ended or the run is to stop."""
        self._has_taken = True
        return self.batches.next_batch(self.trainer.step)

    def prepare(self, groups: Sequence[Group]) -> TokenBatch:
        """The step's batch with model outputs and whatever the algorithm adds."""
        trainer = self.trainer
        self.tell_finished_rollouts()
        batch = self._prepared(groups)
        num_tokens = Metric(name="train/tokens", sum=int(batch["loss_mask"].sum()), reduction="sum")
        self._metrics += [num_tokens, *self.batches.check(batch, trainer.step), *trainer.algorithm.step_metrics(batch)]
        self._hook.batch_ready(trainer=trainer, batch=batch, step=trainer.step)
        return batch

    def train(self, batch: TokenBatch) -> None:
        """One optimizer step per mini-batch for every trained role, then the schedules."""
        trainer = self.trainer
        self._is_training = True
        algorithm = trainer.algorithm
        trained = {name: self._roles[name] for name in algorithm.heads if algorithm.is_trained(name, trainer.step)}
        for minibatch in split_minibatches(batch, trainer.num_minibatches, seed=trainer.seed + trainer.step):
            weighed_batch = weighed(algorithm, minibatch)
            running = {name: group.optimizer_step(weighed_batch) for name, group in trained.items()}
            for name, futures in running.items():
                metrics = trained[name].collect(futures, "optimizer_step")
                self.batches.check_step(metrics, trainer.step)
                self._metrics += metrics
        for group in trained.values():
            group.end_step()
        self._metrics += algorithm.end_step(merge_metrics(self._metrics))
        self._refresh_roles(trainer.step + 1)
        self._has_taken = self._is_training = False
        self._saving.get_ready()

    def sync_weights(self) -> None:
        """Hand the engine the weights of this step; admission goes on with the new version."""
        start = time.monotonic()
        self._metrics += self.batches.hand_over(self.trainer.step)
        self._version = self.trainer.step
        self._hook.weights_synced(trainer=self.trainer, version=self._version, seconds=time.monotonic() - start)

    def evaluate(self) -> dict[str, float]:
        """Metrics of every evaluation set, logged and returned; none if the run is asked to stop meanwhile."""
        trainer, settings = self.trainer, self.trainer.evaluation
        deadline = time.monotonic() + settings.timeout_s
        metrics: list[Metric] = []
        for name, source in self._data.evaluation_sources.items():
            prompts = evaluation_prompts(name, source, settings.max_prompts)
            if isinstance(self.batches, OfflineBatches):
                metrics += self._offline_loss(name, prompts)
                continue
            groups = self.batches.evaluate(prompts, source, timeout_s=max(0.0, deadline - time.monotonic()))
            if groups is None:
                return {}
            metrics += evaluation_metrics(
                name, groups, samples=settings.samples, success_reward=settings.success_reward
            )
        values = {metric.name: metric.value for metric in merge_metrics(metrics).values()}
        self._loggers.metrics(trainer.step, values)
        self._loggers.check()
        self._evaluated_step, self._evaluation = trainer.step, values
        self._hook.evaluate_end(trainer=trainer, step=trainer.step, metrics=values)
        return values

    def end_step(self, groups: Sequence[Group]) -> None:
        """Log the step."""
        self._counts = self.batches.metrics()
        self._metrics += [*self._counts, *self._clock.metrics()]
        values = {metric.name: metric.value for metric in merge_metrics(self._metrics).values()}
        self._metrics = []
        with self.trainer.activity.during("waiting for the loggers to take the step"):
            self._loggers.metrics(self.trainer.step, values)
            self._loggers.samples(self.trainer.step, groups)
        self._loggers.check()
        self._hook.step_end(trainer=self.trainer, step=self.trainer.step, metrics=values)

    def save(self) -> None:
        """Have a checkpoint of everything written: while training goes on or, after the last step, before returning."""
        self._saving.save(self._current_evaluation, goes_on=self.trainer.checkpoint.in_background and not self.is_done)

    def rescue(self) -> bool:
        """Save, before returning, what a run had trained when something else failed.

        False if nothing is new, if the recipe wants no checkpoint at the end, or if a step was half done.
        """
        if self._is_training or self._saving.is_up_to_date or not self.trainer.checkpoint.at_end:
            return False
        if self._has_taken:
            self.batches.give_back()
        self._saving.save(self._current_evaluation, goes_on=False)
        return True

    def complete(self) -> None:
        """The run's last duties: what ``at_end`` asks for and was not due anyway. Interrupted runs are only saved."""
        trainer = self.trainer
        is_due = trainer.checkpoint.at_end and not self._saving.is_up_to_date
        if trainer.evaluation.at_end and self.status == "finished" and self._evaluated_step != trainer.step > 0:
            if self.is_engine_behind:
                with self.phase("sync_weights"):
                    self.sync_weights()
            with self.phase("evaluate"):
                self.evaluate()
            is_due = is_due or (trainer.checkpoint.best is not None and self.should("checkpoint"))
        if is_due and trainer.step > 0:
            with self.phase("checkpoint"):
                self.save()
        self._saving.wait()
        self._log_late_counts()
        self.tell_finished_rollouts()

    def finish_saving(self) -> None:
        """After a failure: let the checkpoint that is being written come to its end, and tell the loggers."""
        self._saving.finish()

    def tell_finished_rollouts(self) -> None:
        """Call ``rollout_finish`` for the groups that completed since the last call."""
        for group in self.batches.finished():
            self._hook.rollout_finish(trainer=self.trainer, group=group)

    # --- inside ----------------------------------------------------------------------------------

    def _log_late_counts(self) -> None:
        """What was counted since the last step, such as groups rejected at the end of the data, joins its numbers."""
        late = merge_metrics([m for m in self.batches.metrics() if m.reduction == "sum" and m.sum])
        if late and self._counts:
            merged = merge_metrics([*self._counts, *late.values()])
            self._loggers.metrics(self.trainer.step, {name: merged[name].value for name in late})
            self._loggers.check()

    def _refresh_roles(self, step: int) -> None:
        for group in self._roles.values():
            refresh = group.role.refresh
            if refresh is not None and refresh.is_due(step):
                group.take_weights("policy", decay=refresh.decay)

    @property
    def _current_evaluation(self) -> Mapping[str, float]:
        """Metrics of an evaluation of this step; empty if there was none."""
        return self._evaluation if self._evaluated_step == self.trainer.step else {}

    @property
    def _is_at_last_step(self) -> bool:
        return self.trainer.max_steps is not None and self.trainer.step >= self.trainer.max_steps

    def _prepared(self, groups: Sequence[Group]) -> TokenBatch:
        algorithm = self.trainer.algorithm
        batch = pack(
            groups, algorithm_columns=algorithm.columns, source_names=self._data.source_names,
            needs_rewards=algorithm.uses_rewards,
        )  # fmt: skip
        batch = batch.with_scalars(step=float(self.trainer.step))
        return prepared(algorithm, with_model_columns(batch, algorithm, self._models))

    def _offline_loss(self, name: str, prompts: Sequence[Prompt]) -> list[Metric]:
        """The objective's loss and metrics over an evaluation set, as ``eval/SET/...``."""
        algorithm = self.trainer.algorithm
        batch = self._prepared([encode_row(algorithm, prompt, self._data.codec) for prompt in prompts])
        weighed_batch = weighed(algorithm, batch)
        metrics = []
        for role in algorithm.heads:
            for metric in self._roles[role].evaluate(weighed_batch):
                metrics.append(replace(metric, name=f"eval/{name}/{metric.name.split('/', 1)[1]}"))
        return metrics
