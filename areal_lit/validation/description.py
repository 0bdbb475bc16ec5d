"""What would be started where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.models import resolve
from areal_lit.validation.walk import engine_specs, has_rewards, roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def describe(trainer: Trainer) -> list[str]:
    """What would be started where, a line each."""
    lines = ["controller: this process"]
    for name, role in roles(trainer).items():
        where = f"on the ranks of {role.colocate_with}" if role.colocate_with else ""
        where = where or trainer.launcher.describe(name, role.num_ranks)
        note = "" if Path(resolve(role.model.path)).exists() else " (a hub model; not checked)"
        lines.append(f"{name}: {type(role.strategy).__name__} of {role.model.path}{note}, {where}")
    lines += [f"{spec.name}: {trainer.launcher.describe(spec.name, 1)}" for spec in engine_specs(trainer)]
    if has_rewards(trainer):
        where = "this process" if trainer.launcher.in_process else f"{trainer.rewarding.num_workers} processes"
        lines.append(f"rewards: {where}")
    return lines
