"""RunDirectory: where everything a run writes is kept, one run at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import yaml

from areal_lit.checkpointing import Checkpoint, CheckpointStore
from areal_lit.files import replacing
from areal_lit.locks import RUN_LOCK, hold, is_held
from areal_lit.logs import Logs, logged_to
from areal_lit.run.versions import versions
from areal_lit.secrets import learn, redact

_REPLACED = ".replaced"
_PARTIAL_CONFIG = ".config.yaml.partial"
_NO_RESULTS = ("config.yaml", _PARTIAL_CONFIG, "versions.json", RUN_LOCK, "logs", "evaluations")
_MARKER = ".areal-lit-run"
"""An empty file in a directory that holds a run and nothing else, which may be deleted therefore."""


class RunDirectory:
    """``runs/NAME`` with config.yaml, versions.json, logs/ and checkpoints/; a context manager, locked within.

    Args:
        path: the directory.
        config: the recipe as resolved; kept without its secrets, which are hidden wherever they turn up once it is
            entered.
        resume: an existing run is to be gone on with.
        overwrite: an existing run is moved to ``NAME.replaced`` and deleted once this one has begun.
        logs: how much of the controller's is kept.

    Entering raises FileExistsError: the directory holds a run already and neither was asked for, or holds more than a
    run, or is in use. What a run left that failed before its first step is used again.
    """

    def __init__(self, path: Path, *, config: Mapping[str, Any], resume: bool, overwrite: bool, logs: Logs) -> None:
        self.path = path
        self.logs = path / "logs"
        self._config = config
        self._resume = resume
        self._replaced = path.with_name(f"{path.name}{_REPLACED}") if overwrite else None
        self._logs = logs
        self._opened = ExitStack()

    def __enter__(self) -> RunDirectory:
        learn(self._config)
        if not self._resume and _holds_run(self.path):
            self._set_aside()
        is_new = not self.path.exists() or all(inside.name == "evaluations" for inside in self.path.iterdir())
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            opened.enter_context(_lock(self.path))
            if is_new:
                (self.path / _MARKER).touch()
            self.logs.mkdir(exist_ok=True)
            opened.enter_context(logged_to(self._logs.open(self.log)))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def log(self) -> Path:
        """What the controller has to say, tracebacks included."""
        return self.logs / "controller.log"

    def begin(self) -> None:
        """The run works: from now on the directory is its own, and the run that it replaces is deleted."""
        with replacing(self.path / "config.yaml") as partial:
            partial.write_text(yaml.safe_dump(redact(self._config), sort_keys=False))
        (self.path / "versions.json").write_text(json.dumps(versions(), indent=2))
        if self._replaced is not None and _is_marked(self._replaced):
            shutil.rmtree(self._replaced)

    def _set_aside(self) -> None:
        if self._replaced is None:
            raise FileExistsError(_taken(self.path))
        with _lock(self.path):
            _check_marked(self.path)
            if self._replaced.exists():
                _check_marked(self._replaced)
                shutil.rmtree(self._replaced)
            self.path.rename(self._replaced)


def leftovers(path: Path) -> list[Path]:
    """What killed runs left in a run's directory, or that directory itself; nothing while it is in use."""
    if is_held(path / RUN_LOCK):
        return []
    replaced = [path] if path.name.endswith(_REPLACED) else []
    checkpoints = CheckpointStore(path / "checkpoints", Checkpoint())
    return [*replaced, *checkpoints.leftovers(), *path.glob(_PARTIAL_CONFIG)]


def make_free(path: Path) -> Path:
    """A new directory, which nobody else gets: ``path``, or the first that is free of ``PATH-2``, ``PATH-3``, ..."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, free = 1, path
    while True:
        try:
            free.mkdir()
        except FileExistsError:
            number += 1
            free = path.with_name(f"{path.name}-{number}")
        else:
            return free


def refusal(path: Path) -> str:
    """Why no run could be kept in a directory, with the way out; empty if one could. Writes nothing."""
    way_out = "choose another place (--runs_dir DIR, runs_dir=...)"
    try:
        str(path.absolute()).encode()  # as safetensors writes files
        existing = next(place for place in (path.absolute(), *path.absolute().parents) if _exists(place))
    except (OSError, ValueError) as error:  # the latter: characters that no path holds
        return f"{str(path)!r} cannot be made: {error}; {way_out}"
    if not existing.is_dir():
        obstacle = "a file" if existing.exists() else "a link to nothing"
        return f"{path} cannot be made: {existing} is {obstacle}; {way_out}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{path} cannot be made: {existing} is not writable; change its permissions or {way_out}"
    return ""


def taken(path: Path) -> str:
    """That a directory holds a run, with the ways out; empty if it holds none."""
    return _taken(path) if not refusal(path) and _holds_run(path) else ""


def _exists(place: Path) -> bool:
    """Whether there is something; raises where that cannot be known, of which ``Path.exists`` hides a part."""
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _taken(path: Path) -> str:
    return (
        f'{path} holds a run already; go on with it (--resume auto, fit(resume="auto")), choose another name '
        "(--name NAME, name=...) or delete it (--overwrite true, overwrite=True)"
    )


def _is_marked(path: Path) -> bool:
    return not path.is_symlink() and (path / _MARKER).is_file()


def _check_marked(path: Path) -> None:
    if not _is_marked(path):
        raise FileExistsError(
            f"{path} is not deleted: it was not made by areal-lit for a run alone (it has no {_MARKER}); move it away "
            "yourself or choose another name (--name NAME, name=...)"
        )


def _holds_run(path: Path) -> bool:
    """Whether a run got as far as a result; its recipe, its logs and a table without rows are none."""
    files = (file for file in path.rglob("*") if file.is_file() and file.relative_to(path).parts[0] not in _NO_RESULTS)
    return (path / "config.yaml").exists() and any(map(_has_content, files))


def _has_content(file: Path) -> bool:
    if file.suffix == ".csv":
        return file.read_bytes().count(b"\n") > 1
    return file.stat().st_size > 0


def _lock(path: Path) -> IO[str]:
    """Hold the directory until the file is closed."""
    try:
        return hold(path / RUN_LOCK)
    except BlockingIOError as error:
        raise FileExistsError(
            f"{path} is {error.strerror}; wait for its end or end it, or choose another name (--name NAME, name=...)"
        ) from None
