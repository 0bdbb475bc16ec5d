"""Weights & Biases."""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from areal_lit_loggers.trackers import SAMPLE_COLUMNS, Artifacts, Journal, LightningTracker, check_artifacts

_CREDENTIALS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


class Wandb(LightningTracker):
    """Logs a Weights & Biases run: metrics over ``trainer/global_step``, samples as a table, figures as images.

    Offline, it keeps files in ``wandb/`` in the run's directory, for ``wandb sync runs/NAME/wandb/offline-run-*``.

    Args:
        project: that the run is shown in.
        entity: user or team; None is the account's default.
        offline: write files, without account or network.
        artifacts: make a wandb artifact of the exported model: a ``reference`` to its path, an ``upload``, or neither.
        samples_per_step: rows of a step's table; 0 is no table.
    """

    name = "wandb"
    packages = ("wandb", "pytorch_lightning")

    def __init__(
        self,
        *,
        project: str = "areal-lit",
        entity: str | None = None,
        offline: bool = False,
        artifacts: Artifacts = "none",
        samples_per_step: int = 8,
    ) -> None:
        super().__init__(samples_per_step=samples_per_step)
        self.project = project
        self.entity = entity
        self.offline = offline
        self.artifacts = check_artifacts(artifacts)

    def environment(self, directory: Path) -> Mapping[str, str]:
        if not self.offline:
            return {}
        return {
            "WANDB_ERROR_REPORTING": "false",  # goes over the network for offline runs too
            **{f"WANDB_{kind}_DIR": str(directory / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
        }

    def problems(self) -> Iterable[str]:
        yield from super().problems()
        if not self.offline and not _has_credentials():
            yield (
                "logger wandb has no account to log to: run `wandb login` once, set WANDB_API_KEY, or write files only "
                "(offline: true)"
            )

    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        import wandb
        from pytorch_lightning.loggers import WandbLogger

        journal.run_id = journal.run_id or secrets.token_hex(4)
        return WandbLogger(
            name=directory.parent.name,
            save_dir=directory.parent,  # below which wandb makes a directory of its name
            id=journal.run_id,
            project=self.project,
            entity=self.entity,
            mode="offline" if self.offline else "online",
            settings=wandb.Settings(
                console="off",  # the run has logs of its own
                disable_code=True,
                x_disable_meta=True,  # the command line may hold secrets
                silent=True,
            ),
        )

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        self._logger.log_table("samples", columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows], step=step)

    def log_figure(self, step: int, name: str, path: Path) -> None:
        self._logger.log_image(f"figures/{name}", [str(path)], step=step)

    def log_artifact(self, step: int, name: str, path: Path) -> None:
        if self.artifacts == "none":
            return
        import wandb

        artifact = wandb.Artifact(f"{name}-{self._logger.version}", type=name, metadata={"step": step})
        if self.artifacts == "upload":
            artifact.add_dir(str(path))
        else:
            artifact.add_reference(path.resolve().as_uri())
        self._logger.experiment.log_artifact(artifact)

    def finish(self, status: str) -> None:
        import wandb

        self._logger.experiment.finish(exit_code=0 if status == "finished" else 1)
        wandb.teardown()


def _has_credentials() -> bool:
    if any(os.environ.get(name) for name in _CREDENTIALS):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return host in netrc.netrc(os.environ.get("NETRC", Path.home() / ".netrc")).hosts
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
