"""Lifecycle: everything that exists while a trainer works is started, and nothing is left running.

Starting follows need: processes import and load models while the data is read, the rollout thread runs before
the engine is connected, and nothing is generated before weights were handed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from areal_lit.activity import Activity
from areal_lit.checkpointing import CheckpointStore, CheckpointWriter, NothingToTrain, find, read_state
from areal_lit.collector import collected_later
from areal_lit.contracts import Callback, Process
from areal_lit.plugins import HookError, create_plugin_manager, load_defaults, tell_all
from areal_lit.recipes import describe_config
from areal_lit.roles import RoleGroup
from areal_lit.rollout import RolloutDefaults
from areal_lit.run.data import RunData
from areal_lit.run.directory import RunDirectory, make_free
from areal_lit.run.failures import Failures
from areal_lit.run.interrupts import Interrupts
from areal_lit.run.loggers import Loggers
from areal_lit.run.offline import OfflineBatches
from areal_lit.run.online import Online
from areal_lit.run.phase_clock import PhaseClock
from areal_lit.run.policies import DefaultPolicies
from areal_lit.run.processes import check_refreshes, set_up, start_engines, start_roles, start_teacher
from areal_lit.run.run import Run, Status
from areal_lit.run.saving import Saving
from areal_lit.run.state import RunState, run_components
from areal_lit.run.teacher import TeacherClient
from areal_lit.secrets import redact

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)

GO_ON = 'go on with --resume auto, fit(resume="auto")'

Checkpoint = tuple[Path, Mapping[str, Any]]
"""Where it lies, and its state."""


class Lifecycle:
    """Starts the parts of an evaluation in order, and ends them in the reverse of it; ``training`` makes a fit of it.

    Args:
        resume: names the checkpoint to begin with.
    """

    def __init__(self, trainer: Trainer, *, resume: str | None) -> None:
        self._trainer = trainer
        self._resume = resume
        self._run_path = Path(trainer.runs_dir) / trainer.name
        self._store = CheckpointStore(self._run_path / "checkpoints", trainer.checkpoint)
        self._exit = ExitStack()
        self._interrupts = Interrupts(self._on_interrupt)
        self._failures = Failures()
        self._directory: RunDirectory | None = None
        self._loggers = Loggers()
        self._plugins: pluggy.PluginManager | None = None
        self._online: Online | None = None
        trainer.activity = Activity()

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Start, hand over to the loop, complete, end."""
        status: Status = "failed"
        run = None
        with self._exit:
            try:
                with collected_later():
                    run = self._start()
                self._begin(run)
                yield run
                self._complete(run)
                status = run.status
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    status = "interrupted"
                    self._loggers.hurry()
                cause = self._failures.cause(error)
                self._report(cause)
                if run is not None:
                    self._rescue(run, cause)
                if cause is not error:
                    raise cause from error  # the death behind the error is what the user needs to read
                raise
            finally:
                self._tell_end(status)
            self._loggers.check()
        if status == "interrupted":
            told = f"interrupted at step {self._trainer.step}; {self._way_on()}"
            logger.info(told)
            raise KeyboardInterrupt(told)

    # --- what training does in another way -------------------------------------------------------

    def _path(self) -> Path:
        """Of the directory."""
        return make_free(self._run_path / "evaluations" / time.strftime("%Y%m%d-%H%M%S"))

    def _find_checkpoint(self, config: Mapping[str, Any]) -> Checkpoint | None:
        """What to begin with, if anything; the trainer is at its step then."""
        self._trainer.step = 0
        path = None if self._resume is None else find(self._resume, self._store)
        if path is None:
            return None
        state = read_state(path)
        self._trainer.step = int(state["step"])
        return path, state

    def _check_data(self, data: RunData) -> None:
        if not data.evaluation_sources:
            raise ValueError("there is nothing to evaluate on: the data has no evaluation sources; add evaluation.data")

    def _restore(self, state: RunState, checkpoint: Checkpoint, data: RunData) -> None:
        state.load_models(checkpoint[0])

    def _begin(self, run: Run) -> None:
        """Give the engine its first weights."""
        assert self._directory is not None
        assert self._plugins is not None
        if run.is_engine_behind:
            run.sync_weights()
        self._directory.begin()
        self._plugins.hook.fit_start(trainer=self._trainer)

    def _complete(self, run: Run) -> None:
        """The loop is over."""

    def _rescue(self, run: Run, error: BaseException) -> None:
        """Save what a failure left whole."""

    # --- starting --------------------------------------------------------------------------------

    def _start(self) -> Run:
        trainer = self._trainer
        config = trainer.config or describe_config(trainer)
        directory = self._open_directory(config)
        checkpoint = self._find_checkpoint(config)
        clock = PhaseClock()
        callbacks, hook = self._load_plugins(clock)
        self._exit.enter_context(self._interrupts)
        self._end_with(trainer.launcher.stop)
        trainer.launcher.setup(directory.logs, self._failures.on_death, trainer.logs)
        roles = start_roles(trainer, watch=self._failures.check)
        setups = {name: set_up(trainer, role, callbacks) for name, role in roles.items()}
        engines, teacher_engines = start_engines(trainer), start_teacher(trainer)
        with trainer.activity.during("reading the data"):
            data = RunData.load(trainer)
            self._check_data(data)
        batches = self._start_batches(data, roles["policy"], engines, hook, directory)
        for name, futures in setups.items():
            roles[name].wait(futures, "setup")
        check_refreshes(roles)
        teacher = self._connect_teacher(teacher_engines)
        parts = run_components(trainer, callbacks=callbacks, loggers=self._loggers.members)
        state = RunState(trainer, roles=roles, batches=batches, components=parts, hook=hook, config=config)
        if checkpoint is not None:
            self._restore(state, checkpoint, data)
        failures, timeout_s = self._failures, trainer.checkpoint.timeout_s
        writer = CheckpointWriter(self._store, timeout_s=timeout_s, watch=failures.check, on_failure=failures.fail)
        self._loggers.setup(directory.path, redact(config), trainer.step)
        state.of_components()  # what cannot be saved is told now, not when there is something to lose
        return Run(
            trainer, path=directory.path, data=data, roles=roles, teacher=teacher, batches=batches,
            saving=Saving(trainer, state=state, writer=writer, loggers=self._loggers), loggers=self._loggers,
            hook=hook, clock=clock, interrupts=self._interrupts, watch=self._failures.check,
        )  # fmt: skip

    def _open_directory(self, config: Mapping[str, Any]) -> RunDirectory:
        trainer, resumes = self._trainer, self._resume is not None
        directory = RunDirectory(
            self._path(), config=config, resume=resumes, overwrite=trainer.overwrite, logs=trainer.logs
        )
        self._directory = self._exit.enter_context(directory)
        return directory

    def _load_plugins(self, clock: PhaseClock) -> tuple[Sequence[Callback], pluggy.HookRelay]:
        trainer = self._trainer
        callbacks = load_defaults("callback", trainer.callbacks)
        self._loggers = Loggers(load_defaults("logger", trainer.loggers))
        core = (DefaultPolicies(self._store.best_score), RolloutDefaults(trainer.rollout), clock)
        self._plugins = create_plugin_manager(callbacks, core=core)
        self._plugins.hook.configure(trainer=trainer)
        return callbacks, self._plugins.hook

    def _start_batches(
        self, data: RunData, policy: RoleGroup, engines: Sequence[Process], hook: pluggy.HookRelay,
        directory: RunDirectory,
    ) -> OfflineBatches | Online:  # fmt: skip
        trainer = self._trainer
        if trainer.algorithm.offline:
            return OfflineBatches(
                stream=data.stream,
                algorithm=trainer.algorithm,
                codec=data.codec,
                groups_per_step=trainer.rollout.groups_per_step,
            )
        # known before it starts: a process that dies from here on ends its waits
        self._online = online = Online(
            trainer, stream=data.stream, sources=data.sources, evaluation_sources=data.evaluation_sources,
            codec=data.codec, policy=policy, hook=hook, directory=directory,
        )  # fmt: skip
        self._failures.listeners.append(online.fail)
        self._end_with(online.stop)
        online.start(engines)
        return online

    def _connect_teacher(self, engines: Sequence[Process]) -> TeacherClient | None:
        trainer = self._trainer
        if trainer.teacher_server is None:
            return None
        client = TeacherClient(trainer.teacher_server, timeout_s=trainer.call_timeout_s, activity=trainer.activity)
        self._failures.listeners.append(client.fail)
        self._end_with(client.stop)
        client.start(engines)
        return client

    # --- while it runs ---------------------------------------------------------------------------

    def _on_interrupt(self) -> None:
        """Called within a signal handler: a wait for rollouts ends without a batch."""
        self._trainer.activity.is_ending = True
        if self._online is not None:
            self._online.interrupt()

    # --- ending ----------------------------------------------------------------------------------

    def _report(self, error: BaseException) -> None:
        """Write a failure down, and say in it where."""
        is_wanted = isinstance(error, KeyboardInterrupt) and self._interrupts.requested  # or code raised it by itself
        if is_wanted or isinstance(error, NothingToTrain) or self._directory is None:
            return
        logger.error("run failed at step %d", self._trainer.step, exc_info=error)
        error.add_note(f"traceback: {self._directory.log}")

    def _way_on(self) -> str:
        """What to do after the run's end, by what is saved then."""
        try:
            newest = self._store.latest()
        except OSError:  # the disk may be what the run ended of
            return f"{GO_ON} from the last checkpoint, if there is one"
        if newest is None:
            return "there is no checkpoint to go on from: begin anew (--overwrite true, overwrite=True)"
        return f"{GO_ON} from {newest}"

    def _end_with(self, stop: Callable[[], None]) -> None:
        """Have something stopped at the end. A further signal does not keep it, nor what comes after it, from that."""

        def uninterrupted() -> None:
            self._interrupts.is_ending = True
            stop()

        self._exit.callback(uninterrupted)

    def _tell_end(self, status: Status) -> None:
        """Loggers first: what they still have to do takes time, which a callback may show.

        What became of the run is settled by now: an interruption ends what is waited for and changes nothing of it.
        """
        try:
            with self._trainer.activity.during("waiting for the loggers to close"):
                self._loggers.close(status)
        finally:
            errors: Sequence[HookError] = ()
            if self._plugins is not None:
                try:
                    errors = tell_all(self._plugins, "fit_end", trainer=self._trainer, status=status)
                except KeyboardInterrupt:
                    logger.warning("interrupted while callbacks were told of the end; some may not know of it")
            for error in errors:
                logger.error("%s", error)
        if errors and status == "finished":  # else what ended the run is what is raised
            raise errors[0]
