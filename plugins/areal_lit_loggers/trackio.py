"""Trackio."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers import SAMPLE_COLUMNS, Journal, Tracker

_DIRECTORY = "TRACKIO_DIR"


class Trackio(Tracker):
    """Logs a Trackio run: metrics, samples as a table, figures as images, the recipe as configuration.

    Trackio keeps one directory per process, that of the environment variable ``TRACKIO_DIR``. Where that is not set it
    is ``trackio/`` in the run's directory: ``TRACKIO_DIR=runs/NAME/trackio trackio show``.

    Args:
        project: that the run is shown in.
        space_id: Hugging Face Space to log to; None is this machine only.
        samples_per_step: rows of a step's table; 0 is no table.
    """

    name = "trackio"
    packages = ("trackio",)

    def __init__(self, *, project: str = "areal-lit", space_id: str | None = None, samples_per_step: int = 8) -> None:
        super().__init__(samples_per_step=samples_per_step)
        self.project = project
        self.space_id = space_id

    def environment(self, directory: Path) -> Mapping[str, str]:
        return {_DIRECTORY: os.environ.get(_DIRECTORY, str(directory.resolve()))}

    def open(self, directory: Path, config: Mapping[str, Any], journal: Journal, step: int) -> None:
        import trackio

        if Path(os.environ[_DIRECTORY]) != Path(trackio.utils.TRACKIO_DIR):
            raise RuntimeError(
                f"trackio cannot write to {os.environ[_DIRECTORY]}: in this process it writes to "
                f"{trackio.utils.TRACKIO_DIR}, because it chooses once, when it is imported. Set {_DIRECTORY} to one "
                "directory for all runs before the first, or start each run in a process of its own"
            )
        # trackio finds a run by its name
        journal.run_id = journal.run_id or f"{directory.parent.name}-{uuid.uuid4().hex[:8]}"
        self._run = trackio.init(
            project=self.project,
            name=journal.run_id,
            space_id=self.space_id,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(values, step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        import trackio

        table = trackio.Table(columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows])
        self._run.log({"samples": table}, step=step)

    def log_figure(self, step: int, name: str, path: Path) -> None:
        import trackio

        self._run.log({f"figures/{name}": trackio.Image(str(path))}, step=step)

    def finish(self, status: str) -> None:
        import trackio

        trackio.finish()
