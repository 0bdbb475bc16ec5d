"""Rules of the place a run writes to, and of the checkpoint it begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.checkpointing import CheckpointStore, find, read_state
from areal_lit.recipes import describe_config
from areal_lit.run.directory import refusal, taken
from areal_lit.run.recipe_changes import fixed_changes

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def place_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The directory and those in it can be written to, and there is the checkpoint to go on with, of this very run."""
    run = Path(trainer.runs_dir) / trainer.name
    if problem := next(filter(None, map(refusal, (run, run / "logs", run / "checkpoints"))), ""):
        yield problem
        return
    try:
        path = _resumed(trainer, resume)
    except ValueError as error:
        yield str(error)
        return
    if path is not None:
        yield from fixed_changes(path, read_state(path)["config"], trainer.config or describe_config(trainer))


def name_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The name is free, or its run is to be gone on with or replaced. Says nothing of the recipe itself."""
    if resume is None and not trainer.overwrite and (problem := taken(Path(trainer.runs_dir) / trainer.name)):
        yield problem


def end_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The checkpoint that is to be gone on with is not where the run ends; where there is none, others tell that."""
    try:
        path = _resumed(trainer, resume)
    except ValueError:
        return
    if path is not None and (problem := nothing_left(path, read_state(path)["step"], trainer.max_steps)):
        yield problem


def nothing_left(path: Path, step: int, max_steps: int | None) -> str:
    """That a run which goes on from the checkpoint of a step ends there, with the way out; empty if it does not."""
    if max_steps is None or step < max_steps:
        return ""
    return (
        f"nothing is left to train: {path} is at step {step} and max_steps is {max_steps}; raise max_steps to go on, "
        "or start a new run (--name NAME)"
    )


def start_rules(trainer: Trainer, checkpoint: str | None) -> Iterator[str]:
    """There is the checkpoint that is to be begun with."""
    if checkpoint is None:
        return
    store = _store(trainer)
    try:
        if find(checkpoint, store) is None:
            yield f"there is no checkpoint in {store.directory}; give a path, or leave it out for the recipe's model"
    except ValueError as error:
        yield str(error)


def _resumed(trainer: Trainer, resume: str | None) -> Path | None:
    """The checkpoint that is to be gone on with, if any. Raises ValueError where what is named is none."""
    return None if resume is None else find(resume, _store(trainer))


def _store(trainer: Trainer) -> CheckpointStore:
    return CheckpointStore(Path(trainer.runs_dir) / trainer.name / "checkpoints", trainer.checkpoint)
