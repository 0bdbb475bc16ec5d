"""Aim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers import Journal, Tracker, sample_text


class Aim(Tracker):
    """Tracks an Aim run: metrics, samples as text, figures as images, the recipe as parameter ``recipe``.

    Args:
        experiment: that the run is shown in.
        repo: directory or ``aim://HOST:PORT``; None is ``aim/`` in the run's directory, which
            ``aim up --repo runs/NAME/aim`` shows.
        samples_per_step: trajectories shown of each step; 0 is none.
    """

    name = "aim"
    packages = ("aim",)

    def __init__(self, *, experiment: str = "areal-lit", repo: str | None = None, samples_per_step: int = 8) -> None:
        super().__init__(samples_per_step=samples_per_step)
        self.experiment = experiment
        self.repo = repo

    def open(self, directory: Path, config: Mapping[str, Any], journal: Journal, step: int) -> None:
        import aim

        self._run = aim.Run(
            run_hash=journal.run_id or None,
            repo=self.repo or str(directory),
            experiment=self.experiment,
            force_resume=journal.is_resumed,  # a killed process leaves a lock; the run's directory has one of its own
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
        )
        self._run.name = directory.parent.name
        self._run["recipe"] = dict(config)
        self._run["status"] = "running"
        journal.run_id = self._run.hash

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._run.track(value, name=name, step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        import aim

        self._run.track([aim.Text(sample_text(row)) for row in rows], name="samples", step=step)

    def log_figure(self, step: int, name: str, path: Path) -> None:
        import aim

        self._run.track(aim.Image(str(path)), name=f"figures/{name}", step=step)

    def finish(self, status: str) -> None:
        self._run["status"] = status
        self._run.close()
