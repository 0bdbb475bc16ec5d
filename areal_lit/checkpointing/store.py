"""CheckpointStore: how checkpoints lie on disk, so that a reader never meets half of one.

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
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from areal_lit.checkpointing.settings import Best

logger = logging.getLogger(__name__)

FORMAT = 2
_PREFIX = "step-"
_PARTIAL, _REPLACED, _DELETED = ".partial-", ".replaced-", ".deleted-"
EXAMPLE = f"runs/quickstart/checkpoints/{_PREFIX}..."
"""How a path to a checkpoint looks, for messages."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: holds one directory per checkpoint.
        keep_last: older ones are deleted after a save; 0 keeps all.
        best: of which evaluation the best one is never deleted.
    """

    def __init__(self, directory: Path, *, keep_last: int, best: Best | None = None) -> None:
        self.directory = directory
        self._keep_last = keep_last
        self._best = best

    # --- writing ---------------------------------------------------------------------------------

    def begin(self, step: int) -> Path:
        """An empty directory to fill; ``commit`` or ``discard`` comes next."""
        partial = self.directory / f"{_PARTIAL}{_name(step)}"
        self.discard(partial)
        partial.mkdir(parents=True)
        return partial

    def commit(self, partial: Path, step: int, state: Mapping[str, Any]) -> Path:
        """Make a filled directory the checkpoint of ``step``, delete what need not be kept, return the final path."""
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, "step": step, **state}))
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(partial)): path.stat().st_size for path in files}
        for path in files:
            _sync(path)
        (partial / "complete.json").write_text(json.dumps(sizes))
        _sync(partial / "complete.json")
        for directory in [partial, *(path for path in partial.rglob("*") if path.is_dir())]:
            _sync(directory)
        final_path = self.directory / _name(step)
        replaced = self.directory / f"{_REPLACED}{_name(step)}"
        if final_path.exists():
            final_path.rename(replaced)
        partial.rename(final_path)
        _sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune(final_path)
        return final_path

    def discard(self, partial: Path) -> None:
        """Remove a directory that will not be committed."""
        shutil.rmtree(partial, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a killed run left half written, and say so; take back what it was about to replace."""
        for partial in self.directory.glob(f"{_PARTIAL}*"):
            logger.warning("removed %s: that checkpoint was never finished", partial)
            self.discard(partial)
        for deleted in self.directory.glob(f"{_DELETED}*"):
            self.discard(deleted)
        for replaced in self.directory.glob(f"{_REPLACED}*"):
            original = self.directory / replaced.name.removeprefix(_REPLACED)
            if original.exists():
                self.discard(replaced)
            else:
                replaced.rename(original)

    def _prune(self, written: Path) -> None:
        if not self._keep_last:
            return
        others = [path for path in self._all() if path != written]
        old = others[: max(0, len(others) - self._keep_last + 1)]
        best = self.best() if old else None
        for path in old:
            if path != best:
                # at once: a kill meanwhile leaves no torn one in the way
                deleted = path.rename(self.directory / f"{_DELETED}{path.name}")
                shutil.rmtree(deleted, ignore_errors=True)

    # --- reading ---------------------------------------------------------------------------------

    def latest(self) -> Path | None:
        """The newest whole checkpoint; torn and foreign ones are skipped with a warning."""
        return next(self._whole(), None)

    def best(self) -> Path | None:
        """The whole checkpoint whose evaluation was best, the earliest of equals; None where none was evaluated."""
        best = self._best_and_score()
        return best and best[0]

    def require_best(self) -> Path:
        """``best``, or ValueError with the reason why there is none."""
        if self._best is None:
            raise ValueError("there is no best checkpoint: checkpoint.best names no evaluation set; use auto or a path")
        path = self.best()
        if path is None:
            raise ValueError(f"there is no best checkpoint: {self.directory} has none with {self._best.key}")
        return path

    def best_score(self) -> float | None:
        """Of the best checkpoint; the higher the better."""
        best = self._best_and_score()
        return best and best[1]

    def _best_and_score(self) -> tuple[Path, float] | None:
        if self._best is None:
            return None
        scores = [(path, self._best.score(_evaluation(path))) for path in self._whole()]
        known = [(path, score) for path, score in reversed(scores) if score is not None]
        return max(known, key=itemgetter(1), default=None)

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

    def _whole(self) -> Iterator[Path]:
        """From the newest to the oldest."""
        for path in reversed(self._all()):
            problem = find_damage(path)
            if problem is None:
                yield path
            else:
                logger.warning("skipping checkpoint %s: %s", path, problem)


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint directory; None for a whole one that this version reads."""
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
    if state.get("format") != FORMAT:
        return f"it has checkpoint format {state.get('format')}, this version of areal-lit reads {FORMAT}"
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
    """The state of a checkpoint. Raises ValueError for a torn or foreign one."""
    problem = find_damage(path)
    if problem is not None:
        raise ValueError(f"cannot resume from {path}: {problem}; choose another checkpoint or --resume auto")
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    return state


def _name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


def _evaluation(path: Path) -> Mapping[str, float]:
    state = _read_object(path / "state.json") or {}
    evaluation: Mapping[str, float] = state.get("evaluation", {})
    return evaluation


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
