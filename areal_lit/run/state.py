"""RunState: what a checkpoint of a run holds, gathered from the run's parts and given back to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from areal_lit.roles import RoleGroup
from areal_lit.secrets import redact
from areal_lit.validation import components

if TYPE_CHECKING:
    from areal_lit.run.offline import OfflineBatches
    from areal_lit.run.online import Online
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)


class RunState:
    """Models and optimizers on their ranks, the position in the data, components, and callbacks' files.

    Args:
        config: the recipe as resolved; kept for readers, without its secrets.
    """

    def __init__(
        self, trainer: Trainer, *, roles: Mapping[str, RoleGroup], batches: OfflineBatches | Online,
        hook: pluggy.HookRelay, config: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._roles = roles
        self._batches = batches
        self._hook = hook
        self._config = config

    def write(self, directory: Path) -> dict[str, Any]:
        """Fill a directory with files; return what goes into ``state.json``."""
        trainer = self._trainer
        for name in trainer.algorithm.heads:
            path = directory / "roles" / name
            path.mkdir(parents=True)
            self._roles[name].save(path.resolve())
        if trainer.checkpoint.export_hf:
            (directory / "hf").mkdir()
            self._roles["policy"].export_hf((directory / "hf").resolve())
        self._hook.checkpoint_save(trainer=trainer, step=trainer.step, directory=directory)
        return {
            "batches": dict(self._batches.state_dict()),
            "components": {path: state for path, c in components(trainer).items() if (state := dict(c.state_dict()))},
            "config": redact(self._config),
        }

    def load_models(self, directory: Path) -> None:
        """Give every trained role what it wrote."""
        for name in self._trainer.algorithm.heads:
            self._roles[name].load((directory / "roles" / name).resolve())

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Take back everything but the models."""
        trainer = self._trainer
        self._batches.load_state_dict(state["batches"])
        found = components(trainer)
        for path, saved in state["components"].items():
            if path in found:
                found[path].load_state_dict(saved)
            else:
                logger.warning("%s saved state for %s, which this recipe does not have", directory, path)
        self._hook.checkpoint_load(trainer=trainer, step=trainer.step, directory=directory)
