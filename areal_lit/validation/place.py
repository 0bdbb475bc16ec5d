"""Rules of the place a run writes to, and of the checkpoint it goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.checkpointing import EXAMPLE, find_damage
from areal_lit.run.directory import refusal

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def place_rules(trainer: Trainer, resume: str | None) -> Iterator[str]:
    """The directory can be written to and is free, or holds what ``resume`` names."""
    path = Path(trainer.runs_dir) / trainer.name
    if problem := refusal(path, resume=resume is not None, overwrite=trainer.overwrite):
        yield problem
    if resume not in (None, "auto", "best") and (damage := find_damage(Path(str(resume)))):
        yield f"cannot resume from {resume}: {damage}; give {EXAMPLE} or auto for the newest"
