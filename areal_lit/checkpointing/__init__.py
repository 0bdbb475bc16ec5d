"""Checkpoints: when they are due, how they lie on disk, and writing them while training goes on."""

from areal_lit.checkpointing.reading import find_damage, read_state
from areal_lit.checkpointing.settings import Best, Checkpoint
from areal_lit.checkpointing.store import CheckpointStore, NothingToTrain, find
from areal_lit.checkpointing.writer import Captured, CheckpointError, CheckpointWriter

__all__ = [
    "Best",
    "Captured",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CheckpointWriter",
    "NothingToTrain",
    "find",
    "find_damage",
    "read_state",
]
