"""Reading checkpoints: which there are, which of them are whole, and the state that each holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FORMAT = 2
STATE_PARTS = ("batches", "components", "random", "evaluation", "config")
"""The tables of ``state.json``, beside ``format`` and ``step``."""
PREFIX = "step-"


def checkpoints(directory: Path) -> list[Path]:
    """Those in a directory, the oldest first; torn ones are among them."""
    return sorted(directory.glob(f"{PREFIX}*")) if directory.exists() else []


def whole_checkpoints(directory: Path) -> Iterator[Path]:
    """Those in a directory that can be read, the newest first; torn and foreign ones are skipped with a warning."""
    for path in reversed(checkpoints(directory)):
        problem = find_damage(path)
        if problem is None:
            yield path
        else:
            logger.warning("skipping checkpoint %s: %s", path, problem)


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint directory; None for a whole one that this version reads."""
    if not path.exists():
        return "it does not exist"
    listing = path / "complete.json"
    if not listing.is_file():
        if inside := [checkpoint.name for checkpoint in checkpoints(path / "checkpoints")]:
            return f"it is a run's directory, not a checkpoint; checkpoints/ in it holds {', '.join(inside)}"
        return "it has no complete.json, so it was never finished (or is not a checkpoint)"
    sizes = _read_object(listing)
    if sizes is None:
        return "complete.json is not readable JSON with sizes of files"
    for name, size in sizes.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    state = _read_object(path / "state.json")
    if state is None or type(state.get("step")) is not int:
        return "state.json is not readable JSON with a step"
    if state.get("format") != FORMAT:
        return f"it has checkpoint format {state.get('format')}, this version of areal-lit reads {FORMAT}"
    if missing := [part for part in STATE_PARTS if not isinstance(state.get(part), dict)]:
        return f"state.json has no table {', '.join(missing)}; something else wrote it, or changed it"
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The state of a whole checkpoint."""
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    return state


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
