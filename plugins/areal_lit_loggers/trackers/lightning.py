"""LightningTracker: what adapters of Lightning's loggers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers.journal import Journal
from areal_lit_loggers.trackers.tracker import Tracker


class LightningTracker(Tracker):
    """Sends metrics, and the recipe as hyperparameters, to a Lightning logger."""

    _logger: Any

    @abstractmethod
    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        """The Lightning logger to open; it is to write below ``directory``."""

    def open(self, directory: Path, config: Mapping[str, Any], journal: Journal, step: int) -> None:
        self._logger = self.lightning_logger(directory, journal, step)
        self.log_config(config, is_new=not journal.is_resumed)
        self._logger.save()
        journal.run_id = str(self._logger.version)

    def log_config(self, config: Mapping[str, Any], *, is_new: bool) -> None:
        """The recipe, of a run that is ``is_new`` to the tracker or is resumed."""
        self._logger.log_hyperparams(dict(config))

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._logger.log_metrics(values, step=step)
        self._logger.save()

    def finish(self, status: str) -> None:
        self._logger.finalize("success" if status == "finished" else "failed")
