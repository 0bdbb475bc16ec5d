"""SwanLab."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from areal_lit_loggers.trackers import Journal, Tracker, sample_text

_STATE = {"finished": "success", "failed": "crashed", "interrupted": "aborted"}


class SwanLab(Tracker):
    """Logs a SwanLab run: metrics, samples as text, figures as images, the recipe as configuration.

    Args:
        project: that the run is shown in.
        workspace: user or organization; None is the account's default.
        offline: write files only, into ``swanlab/`` in the run's directory, for ``swanlab sync`` to upload.
        samples_per_step: trajectories shown of each step; 0 is none.
    """

    name = "swanlab"
    packages = ("swanlab",)

    def __init__(
        self,
        *,
        project: str = "areal-lit",
        workspace: str | None = None,
        offline: bool = False,
        samples_per_step: int = 8,
    ) -> None:
        super().__init__(samples_per_step=samples_per_step)
        self.project = project
        self.workspace = workspace
        self.offline = offline

    def problems(self) -> Iterable[str]:
        yield from super().problems()
        if not self.offline and not _has_credentials():
            yield (
                "logger swanlab has no account to log to: run `swanlab login` once, set SWANLAB_API_KEY, or write "
                "files only (offline: true)"
            )

    def open(self, directory: Path, config: Mapping[str, Any], journal: Journal, step: int) -> None:
        import swanlab

        journal.run_id = journal.run_id or secrets.token_hex(8)
        mode: Literal["offline", "online"] = "offline" if self.offline else "online"
        self._run = swanlab.init(
            project=self.project,
            workspace=self.workspace,
            name=directory.parent.name,
            id=journal.run_id,
            resume="allow",
            config=dict(config),
            log_dir=str(directory),
            mode=mode,
            settings=swanlab.Settings(
                interactive=False,
                terminal={"proxy_type": "none"},  # the run has logs of its own
                probe={"runtime": False, "monitor": False},  # the command line may hold secrets
            ),
        )

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(values, step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        import swanlab

        self._run.log({"samples": [swanlab.Text(sample_text(row)) for row in rows]}, step=step)

    def log_figure(self, step: int, name: str, path: Path) -> None:
        import swanlab

        self._run.log({f"figures/{name}": swanlab.Image(str(path))}, step=step)

    def finish(self, status: str) -> None:
        self._run.finish(state=_STATE[status], error=None if status == "finished" else status)


def _has_credentials() -> bool:
    home = Path(os.environ.get("SWANLAB_ROOT", Path.home() / ".swanlab"))
    return bool(os.environ.get("SWANLAB_API_KEY")) or any(
        (directory / ".netrc").exists() for directory in (home, Path(".swanlab"))
    )
