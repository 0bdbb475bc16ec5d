"""Recipe changes: what a resumed run may differ in from the recipe of its checkpoint, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_lit.leaves import leaves
from areal_lit.secrets import redact

logger = logging.getLogger(__name__)

_FIXED = ("seed", "algorithm.class_path", "data.class_path")
_FREE = ("max_steps", "name", "runs_dir", "overwrite", "loggers", "callbacks", "checkpoint", "evaluation")


def check_changes(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a recipe that another run was trained with, and log what else changed.

    Args:
        path: the checkpoint.
        saved: the recipe that it holds; none where it holds none.

    Raises:
        ValueError: the seed, the algorithm or the data is another.
    """
    if not saved:
        return
    before, after = dict(leaves(saved)), dict(leaves(redact(current)))
    pairs = {key: (before.get(key, "absent"), after.get(key, "absent")) for key in [*before, *after]}
    changes = {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and key.split(".")[0] not in _FREE}
    for key in _FIXED:
        if key in changes:
            was, now = changes[key]
            raise ValueError(
                f"cannot resume from {path}: {key} was {was} and now is {now}; a run keeps its seed and the classes of "
                f"its algorithm and data. Put {was} back, or start a new run (--name NAME without --resume; "
                f"policy.model.path={path / 'hf'} starts it from this model)"
            )
    for key, (was, now) in changes.items():
        logger.warning("resume: %s %s -> %s", key, was, now)
