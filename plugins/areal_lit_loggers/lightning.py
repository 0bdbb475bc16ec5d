"""Any logger of Lightning."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers import Journal, LightningTracker


class Lightning(LightningTracker):
    """Any Lightning logger: metrics and the recipe. Each process of a run that is resumed opens the logger anew.

    Args:
        logger: dotted path of its class, as ``pytorch_lightning.loggers.CSVLogger``.
        arguments: of its constructor. ``save_dir`` and ``root_dir`` are relative to the directory of its class in the
            run's directory.
    """

    name = "lightning"
    packages = ("pytorch_lightning",)

    def __init__(self, *, logger: str, arguments: Mapping[str, Any] | None = None) -> None:
        if "." not in logger:
            raise ValueError(f"logger must be the dotted path of a class, got {logger!r}")
        super().__init__(samples_per_step=0)
        self.logger = logger
        self.arguments = dict(arguments or {})

    @property
    def writes(self) -> str:
        """A directory for each class of Lightning's loggers."""
        return f"{self.name}/{self.logger.rpartition('.')[2]}"

    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        module, _, name = self.logger.rpartition(".")
        logger_class = getattr(importlib.import_module(module), name)
        places = {key: str(directory / path) for key, path in self.arguments.items() if key in ("save_dir", "root_dir")}
        return logger_class(**{**self.arguments, **places})
