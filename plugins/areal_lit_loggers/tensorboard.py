"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit_loggers.trackers import Journal, LightningTracker, sample_text


class TensorBoard(LightningTracker):
    """Writes event files into ``tensorboard/`` in the run's directory: ``tensorboard --logdir runs``.

    Metrics are scalars, samples are text, figures are images, and the recipe is hyperparameters and ``hparams.yaml``.
    What lies past the step that a resumed run goes on from is dropped by TensorBoard when it reads the files.
    """

    name = "tensorboard"
    packages = ("tensorboard", "pytorch_lightning")
    takes_back = True

    def lightning_logger(self, directory: Path, journal: Journal, step: int) -> Any:
        from pytorch_lightning.loggers import TensorBoardLogger

        return TensorBoardLogger(
            save_dir=directory, name="", version="", default_hp_metric=False, purge_step=step + 1 if step else 0
        )

    def log_config(self, config: Mapping[str, Any], *, is_new: bool) -> None:
        if is_new:
            super().log_config(config, is_new=is_new)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        for index, row in enumerate(rows):
            self._logger.experiment.add_text(f"samples/{index}", sample_text(row), step)

    def log_figure(self, step: int, name: str, path: Path) -> None:
        from matplotlib.image import imread

        self._logger.experiment.add_image(f"figures/{name}", imread(path), step, dataformats="HWC")
