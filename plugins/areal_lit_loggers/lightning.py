"""Any logger of Lightning, and what the adapters of particular ones share."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_lit_loggers.journal import Journal
from areal_lit_loggers.tracker import Tracker


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


class Lightning(LightningTracker):
    """Any Lightning logger: metrics and the recipe. Each process of a run that is resumed opens the logger anew.

    Args:
        logger: dotted path of its class, as ``pytorch_lightning.loggers.CSVLogger``.
        arguments: of its constructor. ``save_dir`` and ``root_dir`` are relative to a directory in the run's.
    """

    name = "lightning"
    packages = ("pytorch_lightning",)

    def __init__(self, *, logger: str, arguments: Mapping[str, Any] | None = None) -> None:
        if "." not in logger:
            raise ValueError(f"logger must be the dotted path of a class, got {logger!r}")
        super().__init__(samples_per_step=0)
        self.logger = logger
        self.arguments = dict(arguments or {})

    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        module, _, name = self.logger.rpartition(".")
        logger_class = getattr(importlib.import_module(module), name)
        places = {key: str(directory / path) for key, path in self.arguments.items() if key in ("save_dir", "root_dir")}
        return logger_class(**{**self.arguments, **places})
