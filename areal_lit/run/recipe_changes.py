"""Recipe changes: what a resumed run may differ in from the recipe of its checkpoint, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_lit.leaves import leaves
from areal_lit.secrets import redact

logger = logging.getLogger(__name__)

_FIXED = ("seed", "algorithm.class_path", "data.class_path")
_FREE = ("max_steps", "name", "runs_dir", "overwrite", "loggers", "callbacks", "checkpoint", "evaluation")


def fixed_changes(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Why a recipe cannot go on from a checkpoint: the seed, the algorithm or the data is another.

    Args:
        path: the checkpoint.
        saved: the recipe that it holds; none where it holds none.
    """
    model = path / "hf"
    from_model = f"; policy.model.path={model} starts it from this model" if model.exists() else ""
    for key, (was, now) in _changes(saved, current).items():
        if key in _FIXED:
            yield (
                f"cannot resume from {path}: {key} was {was} and now is {now}; a run keeps its seed and the classes of "
                f"its algorithm and data. Put {was} back, or start a new run (--name NAME without --resume{from_model})"
            )


def log_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Say what a resumed run does in another way than the one that wrote its checkpoint."""
    for key, (was, now) in _changes(saved, current).items():
        logger.warning("resume: %s %s -> %s", key, was, now)


def _changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Of what is not free to change, the values before and now by key."""
    if not saved:
        return {}
    before, after = dict(leaves(saved)), dict(leaves(redact(current)))
    pairs = {key: (before.get(key, "absent"), after.get(key, "absent")) for key in [*before, *after]}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and key.split(".")[0] not in _FREE}
