"""Saving: the checkpoints of a run, written one at a time, and what its loggers are told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from areal_lit.checkpointing import CheckpointWriter
from areal_lit.run.loggers import Loggers
from areal_lit.run.state import RunState

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class Saving:
    """Has the state of a run captured and written. Loggers hear of checkpoints once these are whole."""

    def __init__(self, trainer: Trainer, *, state: RunState, writer: CheckpointWriter, loggers: Loggers) -> None:
        self._trainer = trainer
        self._state = state
        self._writer = writer
        self._loggers = loggers
        self._is_ready = False
        self._saved_step = trainer.step  # what a run starts from needs no saving

    @property
    def is_up_to_date(self) -> bool:
        """Whether the trainer's step is saved, or being saved."""
        return self._saved_step == self._trainer.step

    def get_ready(self) -> None:
        """Once: have the first checkpoint's memory prepared; nobody waits for that."""
        if not self._is_ready:
            self._state.prepare_capture()
            self._is_ready = True

    def save(self, evaluation: Mapping[str, float], *, goes_on: bool) -> None:
        """Write a checkpoint after the one that is being written.

        Args:
            evaluation: metrics of an evaluation of this step, if there was one.
            goes_on: return once the state is captured, and write while training goes on.
        """
        self.wait()
        self._writer.write(
            self._trainer.step, lambda path: self._state.capture(path, evaluation=evaluation, in_background=goes_on)
        )
        self._saved_step = self._trainer.step
        if not goes_on:
            self.wait()

    def check(self) -> None:
        """Raise why a checkpoint could not be written, if so; tell of those that could."""
        self._writer.check()
        self._tell_committed()

    def wait(self) -> None:
        """Until nothing is being written."""
        with self._trainer.activity.during("writing a checkpoint"):
            self._writer.wait()
        self._tell_committed()

    def finish(self) -> None:
        """After a failure: let the checkpoint that is being written come to its end."""
        self._writer.finish()
        self._tell_committed()

    def _tell_committed(self) -> None:
        for step, path in self._writer.take_committed():
            has_export = self._trainer.checkpoint.export_hf
            self._loggers.artifact(step, "model" if has_export else "checkpoint", path / "hf" if has_export else path)
