"""Run: everything that exists while a trainer works, and what its loop does in each phase.

Starting follows need: processes import and load models while the data is read, the rollout thread runs before
the engine is connected, and nothing is generated before weights were handed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.batching import pack, split_minibatches
from areal_lit.checkpoint import CheckpointStore, read_state
from areal_lit.contracts import Component, Death, GroupSpec, Process, ProcessDied, Strategy, WorkerGroup
from areal_lit.evaluation import evaluation_metrics, evaluation_prompts, evaluation_sources
from areal_lit.hookspecs import RANK_HOOKS, PhaseName
from areal_lit.interrupts import Interrupted, Interrupts
from areal_lit.offline import OfflineBatches, encode_row
from areal_lit.online import Online
from areal_lit.plugins import create_plugin_manager, fingerprint, load_defaults
from areal_lit.policies import DefaultPolicies, PhaseClock
from areal_lit.prompts import PromptStream
from areal_lit.recipes import describe_config
from areal_lit.roles import RoleGroup
from areal_lit.rollout import RolloutDefaults
from areal_lit.run_directory import RunDirectory, redact
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group, Metric, Prompt, merge_metrics
from areal_lit.validation import ROLE_OF_NEED, components, roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)

Status = Literal["finished", "failed", "interrupted"]


class Run:
    """A context manager around one fit or evaluation: starts everything, and leaves nothing running.

    Args:
        resume: ``auto``, a checkpoint, or for an evaluation also a Hugging Face model directory.
        is_evaluation: no training state is needed and nothing is saved.
    """

    def __init__(self, trainer: Trainer, *, resume: str | None, is_evaluation: bool = False) -> None:
        self.trainer = trainer
        self._resume = resume
        self._is_evaluation = is_evaluation
        self._failure: BaseException | None = None
        self._exit = ExitStack()
        self._metrics: list[Metric] = []
        self._saved_step = -1
        self._interrupts = Interrupts()

    # --- starting and ending ---------------------------------------------------------------------

    def __enter__(self) -> Run:
        broken = self.trainer.validate()
        if broken:
            raise ValueError("the recipe breaks these rules:\n" + "\n".join(f"- {rule}" for rule in broken))
        try:
            self._start()
        except BaseException as error:
            self._end("failed", error)
            if self._failure not in (None, error):
                raise self._failure from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status: Status = "finished" if error is None else "failed"
        if isinstance(error, Interrupted) or (error is None and self._interrupts.requested):
            status, error = "interrupted", None
        try:
            if error is None:
                self._complete()
        except BaseException as failure:
            status, error = "failed", failure
            raise
        finally:
            self._end(status, error)
        if error is not None and self._failure not in (None, error):
            raise self._failure from error  # the death behind the error is what the user needs to read
        if status == "interrupted":
            logger.warning("interrupted at step %d; go on with --resume auto", self.trainer.step)
            raise KeyboardInterrupt

    def _start(self) -> None:
        trainer = self.trainer
        trainer.step = 0
        self.directory = self._open_directory()
        self._exit.callback(self.directory.close)
        self._store = CheckpointStore(self.directory.checkpoints, keep_last=trainer.checkpoint.keep_last)
        self._clock = PhaseClock()
        self._callbacks = load_defaults("callback", trainer.callbacks)
        self._loggers = load_defaults("logger", trainer.loggers)
        manager = create_plugin_manager(
            self._callbacks, core=(DefaultPolicies(), RolloutDefaults(trainer.rollout), self._clock)
        )
        self.hook = manager.hook
        self.hook.configure(trainer=trainer)
        self._exit.enter_context(self._interrupts)
        self._exit.callback(trainer.launcher.stop)
        trainer.launcher.setup(self.directory.logs, self._on_death)
        self.roles = self._start_roles()
        setups = {name: self._start_role(name, group) for name, group in self.roles.items()}
        engines = [] if trainer.algorithm.offline else self._start_engines()
        self._codec = TextCodec(trainer.policy.model, template_kwargs=trainer.template_kwargs)
        self._load_data()
        self.batches: OfflineBatches | Online = self._start_batches(engines)
        for name, futures in setups.items():
            self.roles[name].wait(futures, "setup")
        self._restore()
        self.batches.hand_over(trainer.step)
        for run_logger in self._loggers:
            run_logger.setup(self.directory.path, self.config, trainer.step)
        self.hook.fit_start(trainer=trainer)
        if not self._is_evaluation and trainer.step == 0 and self.should("evaluate"):
            with self.phase("evaluate"):
                self.evaluate()

    def _open_directory(self) -> RunDirectory:
        trainer = self.trainer
        path = Path(trainer.runs_dir) / trainer.name
        self.config: Mapping[str, Any] = trainer.config or describe_config(trainer)
        if self._is_evaluation:
            path = path / "evaluations" / time.strftime("%Y%m%d-%H%M%S")
        directory = RunDirectory(path, resume=self._resume is not None, overwrite=trainer.overwrite)
        directory.write_config(self.config)
        return directory

    def _start_roles(self) -> dict[str, RoleGroup]:
        groups: dict[str, WorkerGroup] = {}
        present = roles(self.trainer)
        for name, role in present.items():
            if role.colocate_with is None:
                groups[name] = self.trainer.launcher.start_group(
                    GroupSpec(
                        name=name,
                        target="areal_lit.worker:RoleWorker",
                        num_ranks=role.num_ranks,
                        num_threads=role.num_threads,
                    )
                )
        return {
            name: RoleGroup(
                name, role, groups[role.colocate_with or name], watch=self._watch, timeout_s=self.trainer.call_timeout_s
            )
            for name, role in present.items()
        }

    def _start_role(self, name: str, group: RoleGroup) -> list[Any]:
        return group.start(
            head=self.trainer.algorithm.heads.get(name, "value" if name == "critic" else "lm"),
            num_steps=self.trainer.max_steps,
            algorithm=self.trainer.algorithm,
            callbacks=[c for c in self._callbacks if any(hasattr(c, hook) for hook in RANK_HOOKS)],
            fingerprint=fingerprint(components(self.trainer).values()),
        )

    def _start_engines(self) -> list[Process]:
        trainer = self.trainer
        assert trainer.inference is not None
        specs = trainer.inference.processes(
            trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic
        )
        return [trainer.launcher.start_process(spec) for spec in specs]

    def _load_data(self) -> None:
        trainer = self.trainer
        trainer.data.setup(self._codec)
        for module in trainer.evaluation.data.values():
            module.setup(self._codec)
        self._sources = dict(trainer.data.train())
        self._evaluation_sources = evaluation_sources(trainer.data, trainer.evaluation.data)
        if self._is_evaluation and not self._evaluation_sources:
            raise ValueError("there is nothing to evaluate on: the data has no evaluation sources; add evaluation.data")
        if not self._sources and not self._is_evaluation:
            raise ValueError(f"data {type(trainer.data).__name__} has no training sources; it can only be evaluated on")
        self._stream = PromptStream(self._sources, seed=trainer.seed, num_epochs=trainer.rollout.epochs)

    def _start_batches(self, engines: Sequence[Process]) -> OfflineBatches | Online:
        trainer = self.trainer
        if trainer.algorithm.offline:
            return OfflineBatches(
                stream=self._stream,
                algorithm=trainer.algorithm,
                codec=self._codec,
                groups_per_step=trainer.rollout.groups_per_step,
            )
        online = Online(
            trainer,
            stream=self._stream,
            sources=self._sources,
            evaluation_sources=self._evaluation_sources,
            codec=self._codec,
            policy=self.roles["policy"],
            hook=self.hook,
            directory=self.directory,
        )
        self._exit.callback(online.stop)
        online.start(engines)
        return online

    def _complete(self) -> None:
        """The run's last duties: a final evaluation and checkpoint, if they were not due anyway."""
        if self._is_evaluation:
            return
        if self.trainer.checkpoint.at_end and self._saved_step != self.trainer.step > 0:
            with self.phase("checkpoint"):
                self.save()

    def _end(self, status: Status, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt | Interrupted):
            logger.error("run failed at step %d", self.trainer.step, exc_info=error)
        with self._exit:
            for run_logger in getattr(self, "_loggers", ()):
                self._exit.callback(run_logger.close, status)
            if hasattr(self, "hook"):
                self.hook.fit_end(trainer=self.trainer, status=status)

    def _on_death(self, death: Death) -> None:
        """Called from the launcher's watcher thread: whoever waits, wherever, must stop waiting."""
        if self._failure is None:
            self._failure = ProcessDied(str(death))
            logger.error("%s", death)
            batches = getattr(self, "batches", None)
            if isinstance(batches, Online):
                batches.fail(self._failure)

    def _watch(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the loop's questions --------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether the last step was taken, or the run was asked to stop."""
        return self._interrupts.requested or self.trainer.step == self.trainer.max_steps

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Enter every context manager that plugins put around this phase."""
        self._watch()
        with ExitStack() as stack:
            stack.enter_context(self._interrupts.during(name))
            for manager in self.hook.phase(trainer=self.trainer, name=name, step=self.trainer.step):
                stack.enter_context(manager)
            yield

    def should(self, what: Literal["sync_weights", "evaluate", "checkpoint"]) -> bool:
        """What the policy hooks decide after ``trainer.step`` steps."""
        if what == "sync_weights" and self.trainer.algorithm.offline:
            return False
        return bool(getattr(self.hook, f"should_{what}")(trainer=self.trainer, step=self.trainer.step))

    # --- the loop's work -------------------------------------------------------------------------

    def prepare(self, groups: Sequence[Group]) -> TokenBatch:
        """The step's batch with model outputs and whatever the algorithm adds."""
        algorithm, step = self.trainer.algorithm, self.trainer.step
        for group in self.batches.finished():
            self.hook.rollout_finish(trainer=self.trainer, group=group)
        batch = pack(groups, algorithm_columns=algorithm.columns, source_names=list(self._sources))
        batch = algorithm.prepare(self._with_outputs(batch.with_scalars(step=float(step))))
        self._metrics += [*self.batches.check(batch, step), *algorithm.step_metrics(batch)]
        self.hook.batch_ready(trainer=self.trainer, batch=batch, step=step)
        return batch

    def train(self, batch: TokenBatch) -> None:
        """One optimizer step per mini-batch for every trained role, then the schedules."""
        trainer = self.trainer
        trained = {name: self.roles[name] for name in trainer.algorithm.heads}
        for minibatch in split_minibatches(batch, trainer.num_minibatches, seed=trainer.seed + trainer.step):
            weighed = trainer.algorithm.weigh(minibatch)
            running = {name: group.optimizer_step(weighed) for name, group in trained.items()}
            for name, futures in running.items():
                self._metrics += trained[name].collect(futures, "optimizer_step")
        for group in trained.values():
            group.end_step()

    def sync_weights(self) -> None:
        """Hand the engine the weights of this step; admission goes on with the new version."""
        start = time.monotonic()
        self._metrics += self.batches.hand_over(self.trainer.step)
        self.hook.weights_synced(trainer=self.trainer, version=self.trainer.step, seconds=time.monotonic() - start)

    def evaluate(self) -> dict[str, float]:
        """Metrics of every evaluation set, logged and returned."""
        trainer, settings = self.trainer, self.trainer.evaluation
        metrics: list[Metric] = []
        for name, source in self._evaluation_sources.items():
            prompts = evaluation_prompts(name, source, settings.max_prompts)
            if isinstance(self.batches, OfflineBatches):
                metrics += self._offline_loss(name, prompts)
                continue
            groups = self.batches.evaluate(prompts, source)
            metrics += evaluation_metrics(
                name, groups, samples=settings.samples, success_reward=settings.success_reward
            )
        values = {metric.name: metric.value for metric in merge_metrics(metrics).values()}
        for run_logger in self._loggers:
            run_logger.metrics(trainer.step, values)
        self.hook.evaluate_end(trainer=trainer, step=trainer.step, metrics=values)
        return values

    def end_step(self, groups: Sequence[Group]) -> None:
        """Log the step."""
        self._metrics += [*self.batches.metrics(), *self._clock.metrics()]
        values = {metric.name: metric.value for metric in merge_metrics(self._metrics).values()}
        self._metrics = []
        for run_logger in self._loggers:
            run_logger.metrics(self.trainer.step, values)
            run_logger.samples(self.trainer.step, groups)
        self.hook.step_end(trainer=self.trainer, step=self.trainer.step, metrics=values)

    def save(self) -> Path:
        """Write and commit a checkpoint of everything."""
        path = self._store.save(self.trainer.step, self._write_checkpoint)
        self._saved_step = self.trainer.step
        return path

    # --- inside ----------------------------------------------------------------------------------

    def _with_outputs(self, batch: TokenBatch) -> TokenBatch:
        """The batch with the columns that the algorithm needs from models."""
        needs = self.trainer.algorithm.needs
        if "proximal" in needs:
            out = self.roles["policy"].forward(batch, frozenset({"logprob"}))
            assert out.logprob_T is not None
            batch = batch.with_columns(proximal=out.logprob_T)
        for need in sorted(needs & {"reference", "teacher"}):
            out = self.roles[ROLE_OF_NEED[need]].forward(batch, frozenset({"logprob"}))
            assert out.logprob_T is not None
            batch = batch.with_columns(**{need: out.logprob_T})
        if "values" in needs:
            out = self.roles["critic"].forward(batch, frozenset({"value"}))
            assert out.value_T is not None
            assert out.final_value_S is not None
            batch = batch.with_columns(value=out.value_T, final_value=out.final_value_S)
        return batch

    def _offline_loss(self, name: str, prompts: Sequence[Prompt]) -> list[Metric]:
        """The objective's loss and metrics over an evaluation set, as ``eval/SET/...``."""
        algorithm = self.trainer.algorithm
        groups = [encode_row(algorithm, prompt, self._codec) for prompt in prompts]
        batch = algorithm.prepare(self._with_outputs(pack(groups, algorithm_columns=algorithm.columns)))
        weighed = algorithm.weigh(batch)
        metrics = []
        for role in algorithm.heads:
            for metric in self.roles[role].evaluate(weighed):
                metrics.append(replace(metric, name=f"eval/{name}/{metric.name.split('/', 1)[1]}"))
        return metrics

    def _write_checkpoint(self, directory: Path) -> dict[str, Any]:
        trainer = self.trainer
        for name in trainer.algorithm.heads:
            path = directory / "roles" / name
            path.mkdir(parents=True)
            self.roles[name].save(path.resolve())
        if trainer.checkpoint.export_hf:
            (directory / "hf").mkdir()
            self.roles["policy"].export_hf((directory / "hf").resolve())
        self.hook.checkpoint_save(trainer=trainer, step=trainer.step, directory=directory)
        return {
            "batches": dict(self.batches.state_dict()),
            "components": {path: state for path, c in self._stateful().items() if (state := dict(c.state_dict()))},
            "config": redact(self.config),
        }

    def _restore(self) -> None:
        """Take everything back from the checkpoint to resume, if there is one."""
        trainer = self.trainer
        path = self._store.latest() if self._resume == "auto" else Path(self._resume) if self._resume else None
        if path is None:
            return
        state = read_state(path)
        for name in trainer.algorithm.heads:
            self.roles[name].load((path / "roles" / name).resolve())
        trainer.step = self._saved_step = int(state["step"])
        if self._is_evaluation:
            return
        self.batches.load_state_dict(state["batches"])
        found = self._stateful()
        for component, saved in state["components"].items():
            if component in found:
                found[component].load_state_dict(saved)
            else:
                logger.warning("%s saved state for %s, which this recipe does not have", path, component)
        self.hook.checkpoint_load(trainer=trainer, step=trainer.step, directory=path)

    def _stateful(self) -> dict[str, Component]:
        """Components whose state is kept here; strategies write theirs on their ranks."""
        return {path: c for path, c in components(self.trainer).items() if not isinstance(c, Strategy)}
