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
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from areal_lit.checkpointing.reading import FORMAT, PREFIX, checkpoints, find_damage, read_state, whole_checkpoints
from areal_lit.checkpointing.settings import Best, Checkpoint
from areal_lit.files import writing

logger = logging.getLogger(__name__)

_PARTIAL, _REPLACED, _DELETED = ".partial-", ".replaced-", ".deleted-"

_States = dict[Path, Mapping[str, Any]]


class NothingToTrain(ValueError):
    """The checkpoint is where the run ends; the message names it and the way on."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: holds one directory per checkpoint.
        settings: how many are kept, and of which evaluation the best one always is; where they do not say, what the
            newest checkpoint of a run that knew it says.
    """

    def __init__(self, directory: Path, settings: Checkpoint) -> None:
        self.directory = directory
        self._keep_last = settings.keep_last
        self._best = settings.best

    # --- writing ---------------------------------------------------------------------------------

    def begin(self, step: int) -> Path:
        """An empty directory to fill; ``commit`` or ``discard`` comes next. Raises WriteError."""
        partial = self.directory / f"{_PARTIAL}{_name(step)}"
        self.discard(partial)
        with writing(partial):
            partial.mkdir(parents=True)
        return partial

    def commit(self, partial: Path, step: int, state: Mapping[str, Any]) -> Path:
        """Make a filled directory the checkpoint of ``step`` and return its final path. Raises WriteError."""
        text = json.dumps({"format": FORMAT, "step": step, **state})
        final_path = self.directory / _name(step)
        replaced = self.directory / f"{_REPLACED}{_name(step)}"
        with writing(partial, needed_bytes=len(text)):
            (partial / "state.json").write_text(text)
            files = sorted(path for path in partial.rglob("*") if path.is_file())
            sizes = {str(path.relative_to(partial)): path.stat().st_size for path in files}
            for path in files:
                _sync(path)
            (partial / "complete.json").write_text(json.dumps(sizes))
            _sync(partial / "complete.json")
            for directory in [partial, *(path for path in partial.rglob("*") if path.is_dir())]:
                _sync(directory)
            if final_path.exists():
                final_path.rename(replaced)
            partial.rename(final_path)
            _sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        return final_path

    def discard(self, partial: Path) -> None:
        """Remove a directory that will not be committed."""
        shutil.rmtree(partial, ignore_errors=True)

    def leftovers(self) -> list[Path]:
        """What a killed run left half written or half deleted; ``tidy`` removes it."""
        return [path for prefix in (_PARTIAL, _DELETED) for path in self.directory.glob(f"{prefix}*")]

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

    def prune(self, written: Path) -> None:
        """Delete what need not be kept beside the one just written; what cannot be deleted is told and stays."""
        if not self._keep_last:
            return
        others = [path for path in checkpoints(self.directory) if path != written]
        old = others[: max(0, len(others) - self._keep_last + 1)]
        best = self.best() if old else None
        for path in old:
            if path != best:
                try:
                    # at once: a kill meanwhile leaves no torn one in the way
                    shutil.rmtree(path.rename(self.directory / f"{_DELETED}{path.name}"))
                except OSError as error:
                    logger.warning("the old checkpoint %s could not be deleted: %s", path, error)

    # --- reading ---------------------------------------------------------------------------------

    def latest(self) -> Path | None:
        """The newest whole checkpoint; torn and foreign ones are skipped with a warning."""
        return next(whole_checkpoints(self.directory), None)

    def best(self) -> Path | None:
        """The whole checkpoint whose evaluation was best, the earliest of equals; None where none was evaluated."""
        best = self._best_and_score()
        return best and best[0]

    def require_best(self) -> Path:
        """``best``, or ValueError with the reason why there is none."""
        path = self.best()
        if path is None:
            meaning = self._meaning(self._states())
            reason = (
                f"{self.directory} has none with {meaning.key}"
                if meaning
                else f"neither the recipe nor a checkpoint in {self.directory} names its evaluation set "
                "(checkpoint.best.set)"
            )
            raise ValueError(f"there is no best checkpoint: {reason}; use auto or a path")
        return path

    def best_score(self) -> float | None:
        """Of the best checkpoint; the higher the better."""
        best = self._best_and_score()
        return best and best[1]

    def _best_and_score(self) -> tuple[Path, float] | None:
        states = self._states()
        meaning = self._meaning(states)
        if meaning is None:
            return None
        scores = [(path, meaning.score(state["evaluation"])) for path, state in reversed(states.items())]
        return max(((path, score) for path, score in scores if score is not None), key=itemgetter(1), default=None)

    def _meaning(self, states: _States) -> Best | None:
        return self._best or next(filter(None, map(_recorded_best, states.values())), None)

    def _states(self) -> _States:
        """Of the whole checkpoints, from the newest to the oldest."""
        return {path: read_state(path) for path in whole_checkpoints(self.directory)}

    def abandon_after(self, path: Path) -> None:
        """Move aside what does not lead to ``path``, which the run goes on from; else a later ``latest`` returns to it.

        That is every newer checkpoint, and all of them if ``path`` belongs to another run.
        """
        others = checkpoints(self.directory)
        abandoned = [other for other in others if other.name > path.name or not path.parent.samefile(self.directory)]
        if not abandoned:
            return
        aside = next(p for n in itertools.count(1) if not (p := self.directory / f"abandoned-{n}").exists())
        aside.mkdir()
        for other in abandoned:
            other.rename(aside / other.name)
        logger.warning("the run goes on from %s; moved %d other checkpoints to %s", path, len(abandoned), aside)

    def names(self) -> list[str]:
        """What its checkpoints are called, the oldest first; torn ones are among them."""
        return [path.name for path in checkpoints(self.directory)]


def find(name: str, store: CheckpointStore) -> Path | None:
    """The whole checkpoint that a run's user names; None for ``auto`` where the run has none yet.

    Args:
        name: ``auto`` for the newest of the run, ``best`` for its best, or a path: of a checkpoint, or of a run's
            directory for the newest of that run.
        store: of the run.

    Raises:
        ValueError: there is none; the message says why, and the way out.
    """
    if name == "auto":
        return store.latest()
    if name == "best":
        return store.require_best()
    path = Path(name)
    problem = find_damage(path)
    if problem is None:
        return path
    if newest := next(whole_checkpoints(path / "checkpoints"), None):
        return newest
    raise ValueError(
        f"there is no checkpoint to be had at {name!r}: {problem}; give one (runs/quickstart/checkpoints/step-...), a "
        "run's directory or auto"
    )


def _name(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def _recorded_best(state: Mapping[str, Any]) -> Best | None:
    """What best meant to the run that wrote a checkpoint, which may have been told on its command line."""
    settings = state["config"].get("checkpoint") or {}
    return Best(**settings["best"]) if settings.get("best") else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
