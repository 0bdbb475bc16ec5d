"""MLflow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers import SAMPLE_COLUMNS, Artifacts, Journal, LightningTracker, check_artifacts

_LONGEST_NAME = 250
_FOREIGN = re.compile(r"[^\w/. -]", re.ASCII)
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow(LightningTracker):
    """Logs an MLflow run: metrics, the recipe as parameters and file, samples and figures as artifacts.

    MLflow keeps an infinite value as the largest number, and a parameter as it was given first: what a resumed run
    changes of its recipe is in the file ``recipe.json``.

    Args:
        experiment: that the run is shown in.
        tracking_uri: server or database; None is ``mlflow/`` in the run's directory:
            ``mlflow ui --backend-store-uri sqlite:///runs/NAME/mlflow/mlflow.db``.
        artifacts: of the exported model, the path as a tag (``reference``), an ``upload``, or neither.
        samples_per_step: trajectories kept of each step; 0 is none.
    """

    name = "mlflow"
    packages = ("mlflow", "pytorch_lightning")

    def __init__(
        self,
        *,
        experiment: str = "areal-lit",
        tracking_uri: str | None = None,
        artifacts: Artifacts = "none",
        samples_per_step: int = 8,
    ) -> None:
        super().__init__(samples_per_step=samples_per_step)
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.artifacts = check_artifacts(artifacts)

    def environment(self, directory: Path) -> Mapping[str, str]:
        return {"MLFLOW_DISABLE_TELEMETRY": "true"}

    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        from pytorch_lightning.loggers import MLFlowLogger

        directory = directory.resolve()
        return MLFlowLogger(
            experiment_name=self.experiment,
            run_name=directory.parent.name,
            tracking_uri=self.tracking_uri or f"sqlite:///{directory / 'mlflow.db'}",
            artifact_location=None if self.tracking_uri else (directory / "artifacts").as_uri(),
            run_id=journal.run_id or None,
        )

    def log_config(self, config: Mapping[str, Any], *, is_new: bool) -> None:
        if is_new:
            super().log_config(config, is_new=is_new)
        else:
            self._client.update_run(self._run_id, status="RUNNING")
        self._client.log_text(self._run_id, json.dumps(config, indent=2), "recipe.json")

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().log_metrics(step, {metric_name(name): value for name, value in values.items()})

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        table = {"columns": SAMPLE_COLUMNS, "data": rows}
        self._client.log_text(self._run_id, json.dumps(table, ensure_ascii=False), f"samples/{step:08d}.json")

    def log_figure(self, step: int, name: str, path: Path) -> None:
        self._client.log_artifact(self._run_id, str(path), "figures")

    def log_artifact(self, step: int, name: str, path: Path) -> None:
        if self.artifacts == "upload":
            self._client.log_artifacts(self._run_id, str(path), f"{name}/{step:08d}")
        elif self.artifacts == "reference":
            self._client.set_tag(self._run_id, name, str(path.resolve()))

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run_id, _STATUS[status])

    @property
    def _client(self) -> Any:
        return self._logger.experiment

    @property
    def _run_id(self) -> str:
        return str(self._logger.run_id)


def metric_name(name: str) -> str:
    """The name in characters and at a length that MLflow takes; a changed one ends in a hash that tells it apart."""
    allowed = _FOREIGN.sub("_", name)
    if allowed == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{allowed[: _LONGEST_NAME - 9]}_{digest}"
