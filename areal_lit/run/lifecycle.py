"""Lifecycle: everything that exists while a trainer works is started, and nothing is left running.

Starting follows need: processes import and load models while the data is read, the rollout thread runs before
the engine is connected, and nothing is generated before weights were handed over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from areal_lit.activity import Activity
from areal_lit.checkpointing import CheckpointError, CheckpointStore, CheckpointWriter, read_state
from areal_lit.collector import collected_later
from areal_lit.contracts import Callback, Component, Death, Process, ProcessDied
from areal_lit.plugins import create_plugin_manager, load_defaults, tell_all
from areal_lit.prompts import PromptStream
from areal_lit.recipes import describe_config
from areal_lit.roles import RoleGroup
from areal_lit.rollout import RolloutDefaults
from areal_lit.run.data import RunData
from areal_lit.run.directory import RunDirectory
from areal_lit.run.interrupts import Interrupts
from areal_lit.run.loggers import Loggers
from areal_lit.run.offline import OfflineBatches
from areal_lit.run.online import Online
from areal_lit.run.policies import DefaultPolicies, PhaseClock
from areal_lit.run.processes import check_refreshes, set_up, start_engines, start_roles
from areal_lit.run.recipe_changes import check_changes
from areal_lit.run.running import checkpoint_store
from areal_lit.run.state import RunState
from areal_lit.run.work import Run, Status
from areal_lit.secrets import redact
from areal_lit.validation import components
from areal_lit.weight_sync import WeightSyncError

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)

_DEATH_IS_KNOWN_S = 2.0
GO_ON = 'go on with --resume auto, fit(resume="auto")'

Checkpoint = tuple[Path, Mapping[str, Any]]
"""Where it lies, and its state."""


class Lifecycle:
    """Starts the parts of one fit or evaluation in order, and ends them in the reverse of it."""

    def __init__(self, trainer: Trainer, *, resume: str | None, is_evaluation: bool) -> None:
        self._trainer = trainer
        self._resume = resume
        self._is_evaluation = is_evaluation
        self._exit = ExitStack()
        self._interrupts = Interrupts(self._on_interrupt)
        self._failure: BaseException | None = None
        self._died = threading.Event()
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
                yield run
                if not self._is_evaluation:
                    run.complete()
                status = run.status
            except BaseException as error:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                cause = self._cause(error)
                self._report(cause)
                if run is not None and not self._is_evaluation:
                    self._rescue(run, cause)
                if cause is not error:
                    raise cause from error  # the death behind the error is what the user needs to read
                raise
            finally:
                self._tell_end(status)
            self._loggers.check()
        if status == "interrupted":
            told = f"interrupted at step {self._trainer.step}; {GO_ON}"
            logger.info(told)
            raise KeyboardInterrupt(told)

    # --- starting --------------------------------------------------------------------------------

    def _start(self) -> Run:
        trainer = self._trainer
        config = trainer.config or describe_config(trainer)
        directory = self._open_directory(config)
        store = checkpoint_store(trainer, directory.checkpoints)
        store.tidy()
        checkpoint = self._read_checkpoint(store, config)
        clock = PhaseClock()
        callbacks, hook = self._load_plugins(clock, store)
        self._exit.enter_context(self._interrupts)
        self._end_with(trainer.launcher.stop)
        trainer.launcher.setup(directory.logs, self._on_death, trainer.logs)
        groups = start_roles(trainer, watch=self._watch)
        setups = {name: set_up(trainer, group, callbacks) for name, group in groups.items()}
        engines = start_engines(trainer)
        with trainer.activity.during("reading the data"):
            data = self._load_data()
        batches = self._start_batches(data, groups["policy"], engines, hook, directory)
        for name, futures in setups.items():
            groups[name].wait(futures, "setup")
        check_refreshes(groups)
        parts = {**components(trainer), **_listed("callbacks", callbacks), **_listed("loggers", self._loggers.members)}
        state = RunState(trainer, roles=groups, batches=batches, components=parts, hook=hook, config=config)
        if checkpoint is not None:
            self._restore(state, checkpoint, data.stream, store)
        writer = CheckpointWriter(
            store, timeout_s=trainer.checkpoint.timeout_s, watch=self._watch, on_failure=self._fail
        )
        run = Run(
            trainer, path=directory.path, data=data, roles=groups, batches=batches, state=state,
            writer=self._exit.enter_context(writer),
            loggers=self._loggers, hook=hook, clock=clock, interrupts=self._interrupts, watch=self._watch,
        )  # fmt: skip
        self._loggers.setup(directory.path, redact(config), trainer.step)
        self._begin(run, hook, directory)
        return run

    def _open_directory(self, config: Mapping[str, Any]) -> RunDirectory:
        trainer = self._trainer
        path = Path(trainer.runs_dir) / trainer.name
        if self._is_evaluation:
            path = path / "evaluations" / time.strftime("%Y%m%d-%H%M%S")
        directory = RunDirectory(
            path, config=config, resume=self._resume is not None, overwrite=trainer.overwrite, logs=trainer.logs
        )
        self._exit.callback(directory.close)
        self._directory = directory
        return directory

    def _read_checkpoint(self, store: CheckpointStore, config: Mapping[str, Any]) -> Checkpoint | None:
        """What to go on from, if anything; the trainer is at its step then."""
        trainer = self._trainer
        trainer.step = 0
        if self._resume is None:
            return None
        if self._resume == "auto" and not self._is_evaluation:
            if (newest := store.latest()) is None:
                return None
            path = newest
        else:
            path = store.require_best() if self._resume == "best" else Path(self._resume)
        state = read_state(path)
        trainer.step = int(state["step"])
        if not self._is_evaluation:
            check_changes(path, state.get("config") or {}, config)
        if not self._is_evaluation and trainer.max_steps is not None and trainer.step >= trainer.max_steps:
            raise ValueError(
                f"nothing is left to train: {path} is at step {trainer.step} and max_steps is {trainer.max_steps}; "
                "raise max_steps to go on, or start a new run (--name NAME)"
            )
        return path, state

    def _load_plugins(self, clock: PhaseClock, store: CheckpointStore) -> tuple[Sequence[Callback], pluggy.HookRelay]:
        trainer = self._trainer
        callbacks = load_defaults("callback", trainer.callbacks)
        self._loggers = Loggers(load_defaults("logger", trainer.loggers))
        core = (DefaultPolicies(store.best_score), RolloutDefaults(trainer.rollout), clock)
        self._plugins = create_plugin_manager(callbacks, core=core)
        self._plugins.hook.configure(trainer=trainer)
        return callbacks, self._plugins.hook

    def _load_data(self) -> RunData:
        trainer = self._trainer
        data = RunData.load(trainer)
        if self._is_evaluation and not data.evaluation_sources:
            raise ValueError("there is nothing to evaluate on: the data has no evaluation sources; add evaluation.data")
        if not data.sources and not self._is_evaluation:
            raise ValueError(f"data {type(trainer.data).__name__} has no training sources; it can only be evaluated on")
        best = trainer.checkpoint.best
        if best is not None and best.set not in data.evaluation_sources:
            known = ", ".join(data.evaluation_sources) or "none"
            raise ValueError(f"checkpoint.best.set is {best.set!r}, which is no evaluation set; there are: {known}")
        return data

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
        self._end_with(online.stop)
        online.start(engines)
        return online

    def _restore(self, state: RunState, checkpoint: Checkpoint, stream: PromptStream, store: CheckpointStore) -> None:
        path, saved = checkpoint
        state.load_models(path)
        if self._is_evaluation:
            return
        state.restore(path, saved)
        if stream.is_finished:
            raise ValueError(
                f"nothing is left to train: at step {self._trainer.step} of {path} all data was used; raise "
                "rollout.num_epochs to go on, or start a new run (--name NAME)"
            )
        store.abandon_after(path)

    def _begin(self, run: Run, hook: pluggy.HookRelay, directory: RunDirectory) -> None:
        """Give the engine its first weights; from then on an interruption is patient."""
        if run.is_engine_behind:
            run.sync_weights()
        directory.begin()
        hook.fit_start(trainer=self._trainer)
        if self._is_evaluation:
            return
        self._interrupts.is_patient = True
        if self._trainer.step == 0 and run.should("evaluate"):
            with run.phase("evaluate"):
                run.evaluate()

    # --- while it runs ---------------------------------------------------------------------------

    def _on_death(self, death: Death) -> None:
        """Called from the launcher's watcher thread: whoever waits, wherever, must stop waiting."""
        if self._failure is None:
            logger.error("%s", death)
            self._fail(ProcessDied(str(death)))
            self._died.set()

    def _fail(self, error: BaseException) -> None:
        """Called from any thread: the run ends, at the next phase or in the wait that it is in."""
        if self._failure is None:
            self._failure = error
            if self._online is not None:
                self._online.fail(error)

    def _on_interrupt(self) -> None:
        """Called within a signal handler: a wait for rollouts ends without a batch."""
        self._trainer.activity.is_ending = True
        if self._online is not None:
            self._online.interrupt()

    def _watch(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- ending ----------------------------------------------------------------------------------

    def _cause(self, error: BaseException) -> BaseException:
        """The death behind an error. Whoever talks to a process may notice before the one who watches it does."""
        if _is_lost_connection(error):
            self._died.wait(_DEATH_IS_KNOWN_S)
        return self._failure or error

    def _report(self, error: BaseException) -> None:
        """Write a failure down, and say in it where."""
        if isinstance(error, KeyboardInterrupt) or self._directory is None:
            return
        logger.error("run failed at step %d", self._trainer.step, exc_info=error)
        error.add_note(f"traceback: {self._directory.log}")

    def _rescue(self, run: Run, error: BaseException) -> None:
        """Save what was trained if the failure left that whole, and say from where the run can go on."""
        step = self._trainer.step
        if isinstance(error, KeyboardInterrupt):
            error.args = (f"stopped at step {step} without saving; {GO_ON} from the last checkpoint",)
            return
        is_saved = False
        # a process that died cannot save, and a disk that was full still is
        if self._failure is None and not isinstance(error, CheckpointError):
            try:
                is_saved = run.rescue()
            # the first failure is the one to report; whatever else a broken run raises now is written down
            except Exception:
                logger.exception("step %d could not be saved after the failure", step)
        if is_saved:
            error.add_note(f"step {step} is saved; {GO_ON}")
        elif step:
            error.add_note(f"{GO_ON} from the last checkpoint, if any")

    def _end_with(self, stop: Callable[[], None]) -> None:
        """Have something stopped at the end. A further signal does not keep it, nor what comes after it, from that."""

        def uninterrupted() -> None:
            self._interrupts.is_ending = True
            stop()

        self._exit.callback(uninterrupted)

    def _tell_end(self, status: Status) -> None:
        """Loggers first: what they still have to do takes time, which a callback may show."""
        try:
            with self._trainer.activity.during("waiting for the loggers to close"):
                self._loggers.close(status)
        finally:
            errors = []
            if self._plugins is not None:
                errors = tell_all(self._plugins, "fit_end", trainer=self._trainer, status=status)
            for error in errors:
                logger.error("%s", error)
        if errors and status == "finished":  # else what ended the run is what is raised
            raise errors[0]


def _listed(name: str, parts: Sequence[Component]) -> dict[str, Component]:
    """Components by path, as ``components`` has those that the recipe lists."""
    return {f"{name}.{index}": part for index, part in enumerate(parts)}


def _is_lost_connection(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ConnectionError | WeightSyncError):
            return True
        error = error.__cause__
    return False
