"""TrainingLifecycle: what a fit starts, saves and ends beyond an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_lit.checkpointing import CheckpointError, NothingToTrain
from areal_lit.run.data import RunData
from areal_lit.run.lifecycle import GO_ON, Checkpoint, Lifecycle
from areal_lit.run.recipe_changes import log_changes
from areal_lit.run.run import Run
from areal_lit.run.state import RunState
from areal_lit.validation import nothing_left

logger = logging.getLogger(__name__)


class TrainingLifecycle(Lifecycle):
    """Goes on from a checkpoint with all of its state, and saves what it trains, after a failure too."""

    def _path(self) -> Path:
        return self._run_path

    def _find_checkpoint(self, config: Mapping[str, Any]) -> Checkpoint | None:
        self._store.tidy()
        checkpoint = super()._find_checkpoint(config)
        if checkpoint is None:
            return None
        path, state = checkpoint
        log_changes(state["config"], config)
        if problem := nothing_left(path, self._trainer.step, self._trainer.max_steps):
            raise NothingToTrain(problem)
        return checkpoint

    def _check_data(self, data: RunData) -> None:
        trainer = self._trainer
        if not data.sources:
            raise ValueError(f"data {type(trainer.data).__name__} has no training sources; it can only be evaluated on")
        best = trainer.checkpoint.best
        if best is not None and best.set not in data.evaluation_sources:
            known = ", ".join(data.evaluation_sources) or "none"
            raise ValueError(f"checkpoint.best.set is {best.set!r}, which is no evaluation set; there are: {known}")

    def _restore(self, state: RunState, checkpoint: Checkpoint, data: RunData) -> None:
        super()._restore(state, checkpoint, data)
        path, saved = checkpoint
        state.restore(path, saved)
        if data.stream.is_finished:
            raise NothingToTrain(
                f"nothing is left to train: at step {self._trainer.step} of {path} all data was used; raise "
                "rollout.num_epochs to go on, or start a new run (--name NAME)"
            )
        self._store.abandon_after(path)

    def _begin(self, run: Run) -> None:
        """From then on an interruption is patient."""
        super()._begin(run)
        self._interrupts.is_patient = True
        if self._trainer.step == 0 and run.should("evaluate"):
            with run.phase("evaluate"):
                run.evaluate()

    def _complete(self, run: Run) -> None:
        run.complete()

    def _rescue(self, run: Run, error: BaseException) -> None:
        """Save what was trained if the failure left that whole, and say from where the run can go on."""
        step = self._trainer.step
        if isinstance(error, KeyboardInterrupt) and self._interrupts.requested:
            error.args = (f"stopped at step {step} without saving; {self._way_on()}",)
            return
        is_saved = False
        # a process that died cannot save, and a disk that was full still is
        if self._failures.first is None and not isinstance(error, CheckpointError):
            try:
                is_saved = run.rescue()
            # the first failure is the one to report; whatever else a broken run raises now is written down
            except Exception:
                logger.exception("step %d could not be saved after the failure", step)
        run.finish_saving()
        if is_saved:
            error.add_note(f"step {step} is saved; {GO_ON}")
        elif step:
            error.add_note(self._way_on())
