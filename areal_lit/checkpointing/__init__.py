"""Checkpoints: when they are due, how they lie on disk, and writing them while training goes on."""

from areal_lit.checkpointing.settings import Best, Checkpoint
from areal_lit.checkpointing.store import EXAMPLE, CheckpointStore, find_damage, read_state, whole_checkpoint
from areal_lit.checkpointing.writer import Captured, CheckpointError, CheckpointWriter, naming_the_disk

__all__ = [
    "EXAMPLE",
    "Best",
    "Captured",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "CheckpointWriter",
    "find_damage",
    "naming_the_disk",
    "read_state",
    "whole_checkpoint",
]
