"""Checkpoint: what is saved, written so that a reader never meets half of it.

A checkpoint is a directory ``step-00000042`` with the roles' states, a Hugging Face export of the policy and
``state.json`` (position in the data, counters, components). It is written under another name, synced to
disk, listed with sizes in ``complete.json`` and only then renamed.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

logger = logging.getLogger(__name__)

FORMAT = 1
_PREFIX = "step-"
EXAMPLE = f"runs/quickstart/checkpoints/{_PREFIX}..."
"""How a path to a checkpoint looks, for messages."""


@final
class Checkpoint:
    """When to save, and how many checkpoints to keep.

    Args:
        every_steps: save after every so many training steps; 0 is only at the end.
        at_end: also save when the run ends or is interrupted.
        keep_last: how many of the newest to keep; 0 keeps all.
        export_hf: include a Hugging Face export of the policy.
    """

    def __init__(
        self, *, every_steps: int = 0, at_end: bool = True, keep_last: int = 2, export_hf: bool = True
    ) -> None:
        for name, value in (("every_steps", every_steps), ("keep_last", keep_last)):
            if value < 0:
                raise ValueError(f"checkpoint.{name} must be >= 0, got {value}")
        self.every_steps = every_steps
        self.at_end = at_end
        self.keep_last = keep_last
        self.export_hf = export_hf

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the default policy saves after ``step`` steps."""
        return (self.every_steps > 0 and step % self.every_steps == 0) or (is_last and self.at_end)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: holds one directory per checkpoint.
        keep_last: older ones are deleted after a save; 0 keeps all.
    """

    def __init__(self, directory: Path, *, keep_last: int) -> None:
        self.directory = directory
        self._keep_last = keep_last

    def save(self, step: int, write: Callable[[Path], Mapping[str, Any]]) -> Path:
        """Have ``write`` fill a directory and return the state to keep; commit it; return its final path."""
        final_path = self.directory / f"{_PREFIX}{step:08d}"
        partial = self.directory / f".partial-{step:08d}"
        for leftover in self.directory.glob(".partial-*"):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        state = write(partial)
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, "step": step, **state}))
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(partial)): path.stat().st_size for path in files}
        for path in files:
            _sync(path)
        (partial / "complete.json").write_text(json.dumps(sizes))
        _sync(partial / "complete.json")
        _sync(partial)
        if final_path.exists():
            shutil.rmtree(final_path)
        partial.rename(final_path)
        _sync(self.directory)
        self._prune(final_path)
        return final_path

    def latest(self) -> Path | None:
        """The newest complete checkpoint; torn ones are skipped with a warning."""
        for path in reversed(self._all()):
            problem = find_damage(path)
            if problem is None:
                return path
            logger.warning("skipping checkpoint %s: %s", path, problem)
        return None

    def abandon_after(self, path: Path) -> None:
        """Move aside what does not lead to ``path``, which the run goes on from; else a later ``latest`` returns to it.

        That is every newer checkpoint, and all of them if ``path`` belongs to another run.
        """
        kept = [other for other in self._all() if other.name <= path.name and path.parent.samefile(self.directory)]
        abandoned = [other for other in self._all() if other not in kept]
        if not abandoned:
            return
        aside = next(p for n in itertools.count(1) if not (p := self.directory / f"abandoned-{n}").exists())
        aside.mkdir()
        for other in abandoned:
            other.rename(aside / other.name)
        logger.warning("the run goes on from %s; moved %d other checkpoints to %s", path, len(abandoned), aside)

    def names(self) -> list[str]:
        """What its checkpoints are called, the oldest first; torn ones are among them."""
        return [path.name for path in self._all()]

    def _all(self) -> list[Path]:
        return sorted(self.directory.glob(f"{_PREFIX}*")) if self.directory.exists() else []

    def _prune(self, written: Path) -> None:
        others = [path for path in self._all() if path != written]
        if self._keep_last:
            for path in others[: max(0, len(others) - self._keep_last + 1)]:
                shutil.rmtree(path)


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint directory; None for a whole one."""
    listing = path / "complete.json"
    if not listing.is_file():
        inside = CheckpointStore(path / "checkpoints", keep_last=0).names()
        if inside:
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
    return None


def whole_checkpoint(path: Path) -> Path:
    """A checkpoint to evaluate: ``path`` itself or, where it is a run's directory, the newest whole one of the run.

    Raises ValueError when there is none.
    """
    problem = find_damage(path)
    is_one = (path / "complete.json").exists() or path.name.startswith(_PREFIX)
    if not is_one and (newest := CheckpointStore(path / "checkpoints", keep_last=0).latest()):
        return newest
    if problem is None:
        return path
    if not is_one:
        problem = "it is neither a checkpoint, nor a run with one, nor a Hugging Face model directory"
    raise ValueError(f"cannot evaluate {path}: {problem}; give {EXAMPLE} or runs/quickstart for the newest")


def read_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint. Raises ValueError for a torn, foreign or newer one."""
    problem = find_damage(path)
    if problem is not None:
        raise ValueError(f"cannot resume from {path}: {problem}; choose another checkpoint or --resume auto")
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    if state.get("format") != FORMAT:
        raise ValueError(f"{path} has checkpoint format {state.get('format')}, this version reads {FORMAT}")
    return state


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
