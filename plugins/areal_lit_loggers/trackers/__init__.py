"""What the loggers have in common that send a run to an experiment tracker."""

from areal_lit_loggers.trackers.artifacts import Artifacts, check_artifacts
from areal_lit_loggers.trackers.journal import Journal
from areal_lit_loggers.trackers.lightning import LightningTracker
from areal_lit_loggers.trackers.tracker import SAMPLE_COLUMNS, Tracker, sample_text

__all__ = [
    "SAMPLE_COLUMNS", "Artifacts", "Journal", "LightningTracker", "Tracker", "check_artifacts", "sample_text",
]  # fmt: skip
