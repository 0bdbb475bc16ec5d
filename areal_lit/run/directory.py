"""RunDirectory: where everything a run writes is kept, one run at a time."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from areal_lit.logs import DEFAULT_LOGS, LogHandler, Logs, terminal_handler
from areal_lit.run.versions import versions
from areal_lit.secrets import RedactingFormatter, learn, redact

_NO_RESULTS = ("config.yaml", ".config.yaml", "versions.json", ".lock", "logs", "evaluations")
_MARKER = ".areal-lit-run"
"""An empty file in a directory that holds a run and nothing else, which may be deleted therefore."""


class RunDirectory:
    """``runs/NAME`` with config.yaml, versions.json, logs/ and checkpoints/; locked while open.

    Args:
        path: the directory.
        config: the recipe as resolved; kept without its secrets, which from now on are hidden wherever they turn up.
        resume: an existing run is to be gone on with.
        overwrite: an existing run is moved to ``NAME.replaced`` and deleted once this one has begun.
        logs: how much of the controller's is kept.

    Raises:
        FileExistsError: the directory holds a run already and neither was asked for, or holds more than a run, or is in
            use. What a run left that failed before its first step is used again.
    """

    def __init__(
        self, path: Path, *, config: Mapping[str, Any], resume: bool, overwrite: bool, logs: Logs = DEFAULT_LOGS
    ) -> None:
        learn(config)
        self.path = path
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self._config = config
        self._replaced = path.with_name(f"{path.name}.replaced") if overwrite else None
        if not resume and _holds_run(path):
            if self._replaced is None:
                raise FileExistsError(_taken(path))
            with _lock(path):
                _check_marked(path)
                if self._replaced.exists():
                    _check_marked(self._replaced)
                    shutil.rmtree(self._replaced)
                path.rename(self._replaced)
        is_new = not path.exists() or all(inside.name == "evaluations" for inside in path.iterdir())
        path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            opened.enter_context(_lock(path))
            if is_new:
                (path / _MARKER).touch()
            self.logs.mkdir(exist_ok=True)
            opened.enter_context(_log_to(self.log, logs))
            self._opened = opened.pop_all()

    @property
    def log(self) -> Path:
        """What the controller has to say, tracebacks included."""
        return self.logs / "controller.log"

    def begin(self) -> None:
        """The run works: from now on the directory is its own, and the run that it replaces is deleted."""
        partial = self.path / ".config.yaml"
        partial.write_text(yaml.safe_dump(redact(self._config), sort_keys=False))
        partial.rename(self.path / "config.yaml")
        (self.path / "versions.json").write_text(json.dumps(versions(), indent=2))
        if self._replaced is not None and _is_marked(self._replaced):
            shutil.rmtree(self._replaced)

    def close(self) -> None:
        """Let another process use the directory."""
        self._opened.close()


def refusal(path: Path, *, resume: bool, overwrite: bool) -> str:
    """Why a run could not use a directory, with the way out; empty if it could. Writes nothing."""
    existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    way_out = "choose another place (--runs_dir DIR, runs_dir=...)"
    if not existing.is_dir():
        return f"{path} cannot be made: {existing} is a file; {way_out}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{path} cannot be made: {existing} is not writable; change its permissions or {way_out}"
    return _taken(path) if not resume and not overwrite and _holds_run(path) else ""


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


@contextmanager
def _log_to(file: Path, logs: Logs) -> Iterator[None]:
    """The package's log goes to the file; its warnings to the terminal too, unless somebody set logging up."""
    handlers: list[logging.Handler] = [LogHandler(logs.open(file))]
    handlers[0].setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package_logger = logging.getLogger("areal_lit")
    if not package_logger.hasHandlers():
        handlers.append(terminal_handler())
    for handler in handlers:
        package_logger.addHandler(handler)
    package_logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            package_logger.removeHandler(handler)
            handler.close()


def _lock(path: Path) -> IO[str]:
    """Hold the directory until the file is closed; who holds it stands in the file."""
    file = (path / ".lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or "another process"
        file.close()
        raise FileExistsError(
            f"{path} is in use by {holder}; wait for its end or end it, or choose another name (--name NAME, name=...)"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file
