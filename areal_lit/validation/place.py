"""Rules of the place a run writes to, and of the checkpoint it begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.checkpointing import CheckpointStore, find
from areal_lit.run.directory import refusal, taken

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def place_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The directory can be written to, and there is the checkpoint that is to be gone on with."""
    if problem := refusal(Path(trainer.runs_dir) / trainer.name):
        yield problem
    if resume != "auto":  # which begins anew where there is none
        yield from start_rules(trainer, resume)


def name_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The name is free, or its run is to be gone on with or replaced. Says nothing of the recipe itself."""
    if resume is None and not trainer.overwrite and (problem := taken(Path(trainer.runs_dir) / trainer.name)):
        yield problem


def start_rules(trainer: Trainer, checkpoint: str | None) -> Iterator[str]:
    """There is the checkpoint that is to be begun with."""
    if checkpoint is None:
        return
    store = CheckpointStore(Path(trainer.runs_dir) / trainer.name / "checkpoints", trainer.checkpoint)
    try:
        if find(checkpoint, store) is None:
            yield f"there is no checkpoint in {store.directory}; give a path, or leave it out for the recipe's model"
    except ValueError as error:
        yield str(error)
